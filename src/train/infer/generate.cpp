#include "train/infer/generate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/autograd/tape.h"
#include "lockstep/base/option.h"
#include "lockstep/base/random.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::train {
namespace {

/// The number of positions to compute for `seen` tokens. A device prepares its libraries for each length, so
/// there are only a few lengths: positions after the last token do not affect earlier ones.
std::int64_t positions_for(std::int64_t seen, std::int64_t context, Device device) {
  constexpr std::int64_t step = 64;
  if (device == Device::cpu()) return seen;
  return std::min(context, (seen + step - 1) / step * step);
}

/// An index drawn with probabilities softmax(logits / temperature); `uniform` in [0, 1).
std::int64_t draw(std::span<const float> logits, double temperature, double uniform) {
  const auto highest = std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return highest - logits.begin();
  std::vector<double> weights(logits.size());
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights[i] = std::exp((static_cast<double>(logits[i]) - *highest) / temperature);
    total += weights[i];
  }
  double left = uniform * total;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<std::int64_t>(i);
  }
  return highest - logits.begin();
}

}  // namespace

std::string generate(models::Model& model, const data::Tokenizer& tokenizer, kernels::Backend& backend,
                     const std::string& prompt, const GenerateOptions& options) {
  if (model.context() == 0) throw UsageError("generate: the model is not a language model");
  if (model.classes() < tokenizer.vocabulary())
    throw UsageError("generate: the model has {} tokens, but its tokenizer has {}: the others are unknown",
                     model.classes(), tokenizer.vocabulary());
  std::vector<std::int64_t> tokens = tokenizer.encode(prompt);
  if (tokens.empty()) throw UsageError("--prompt: is empty; give at least one character");
  constexpr Range tokens_asked = Range::from(0, 1e8), temperatures = Range::from(0, 1000);
  if (!tokens_asked.contains(static_cast<double>(options.tokens)))
    throw UsageError("--tokens {}: must be in {}", options.tokens, tokens_asked.text());
  if (!temperatures.contains(options.temperature))
    throw UsageError("--temperature {}: must be in {}", options.temperature, temperatures.text());

  const std::int64_t context = model.context();
  const Random random({options.seed, purpose_of("generate"), 0, 0});
  const std::size_t prompted = tokens.size();
  Tape tape(backend);
  std::vector<std::int64_t> window;
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const auto seen = std::min<std::int64_t>(static_cast<std::int64_t>(tokens.size()), context);
    tape.begin({.training = false, .record = false, .compute = options.compute, .same_parameters = i > 0});
    const std::int64_t positions = positions_for(seen, context, backend.device());
    window.assign(tokens.end() - seen, tokens.end());
    window.resize(static_cast<std::size_t>(positions));
    const Tensor prefix = Tensor::view(window.data(), {1, positions}, DType::int64);
    const Var logits = model.forward(tape, kernels::on_device(prefix, backend));
    const Tensor rows = logits.value().reshape({positions, model.classes()});
    const Tensor last_floats = backend.empty({1, model.classes()});
    backend.copy(rows.rows(seen - 1, seen), last_floats);
    const Tensor last = kernels::on_cpu(last_floats, &backend);
    tokens.push_back(draw({last.data<float>(), static_cast<std::size_t>(tokenizer.vocabulary())},
                          options.temperature,
                          static_cast<double>(random.uniform(static_cast<std::uint64_t>(i)))));
  }
  return tokenizer.decode(std::span(tokens).subspan(prompted));
}

}  // namespace lockstep::train
