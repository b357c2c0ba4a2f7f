#include "train/infer/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "base/text.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/key_value_cache.h"
#include "lockstep/base/option.h"
#include "lockstep/base/random.h"

namespace lockstep::train {
namespace {

/// Draws tokens from logits, as the options say.
class TokenSampler {
 public:
  explicit TokenSampler(const GenerateOptions& options) : options_(options) {}

  /// `uniform` in [0, 1) decides.
  std::int64_t draw(std::span<const float> logits, double uniform) {
    const auto likeliest = std::ranges::max_element(logits) - logits.begin();
    if (options_.temperature == 0 || options_.top_k == 1) return likeliest;
    candidates_.resize(logits.size());
    std::iota(candidates_.begin(), candidates_.end(), 0);
    const auto before = [&](std::int64_t a, std::int64_t b) {
      const float of_a = logits[static_cast<std::size_t>(a)], of_b = logits[static_cast<std::size_t>(b)];
      return of_a != of_b ? of_a > of_b : a < b;
    };
    if (const auto count = static_cast<std::size_t>(options_.top_k); count > 0 && count < logits.size()) {
      std::ranges::nth_element(candidates_, candidates_.begin() + static_cast<std::ptrdiff_t>(count), before);
      candidates_.resize(count);
    }
    if (options_.top_k > 0 || options_.top_p < 1) std::ranges::sort(candidates_, before);
    weights_.clear();
    const double highest = logits[static_cast<std::size_t>(likeliest)];
    for (const std::int64_t token : candidates_)
      weights_.push_back(std::exp((static_cast<double>(logits[static_cast<std::size_t>(token)]) - highest) /
                                  options_.temperature));
    double total = std::reduce(weights_.begin(), weights_.end(), 0.0);
    if (options_.top_p < 1) {
      double sum = 0;
      std::size_t count = 0;
      while (count < weights_.size() && sum < options_.top_p * total) sum += weights_[count++];
      weights_.resize(count);
      total = sum;
    }
    double left = uniform * total;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      left -= weights_[i];
      if (left < 0) return candidates_[i];
    }
    return likeliest;
  }

 private:
  const GenerateOptions& options_;
  std::vector<std::int64_t> candidates_;
  std::vector<double> weights_;
};

/// Computes the logits that follow each of some texts.
class TextReader {
 public:
  /// longest: tokens that a text can get; no more memory is taken than these and the context need.
  TextReader(models::Model& model, kernels::Backend& backend, DType compute, std::int64_t longest)
      : model_(model), backend_(backend), tape_(backend), compute_(compute) {
    if (model.reads_positions()) cache_.emplace(std::min(model.context(), longest));
  }

  /// Whether texts can be read together.
  bool reads_several() const { return cache_.has_value(); }

  /// [texts, classes] on the CPU, after the texts have grown by a token each since the last call.
  Tensor logits_after(std::span<const Tokens> texts) {
    const std::int64_t context = model_.context();
    if (!cache_) return logits(texts, context);
    if (cache_->length() == context) cache_->clear();
    const bool starts = cache_->length() == 0;
    // A context that was full once begins again with its second half.
    return logits(texts, !starts ? 1 : started_ ? std::max<std::int64_t>(1, context / 2) : context);
  }

 private:
  /// Reads the last `window` tokens of each text, beside each other at their ends.
  Tensor logits(std::span<const Tokens> texts, std::int64_t window) {
    std::int64_t time = 0;
    for (const Tokens& text : texts) time = std::max(time, std::min(std::ssize(text), window));
    // A device prepares its libraries for each length, so there are only a few lengths.
    constexpr std::int64_t step = 64;
    const bool pads = !cache_ && !(backend_.device() == Device::cpu());
    const std::int64_t rows = pads ? std::min(window, (time + step - 1) / step * step) : time;
    const auto count = std::ssize(texts);
    const Tensor x = Tensor::zeros({count, rows}, DType::int64),
                 positions = Tensor::zeros({count, rows}, DType::int64);
    if (cache_ && cache_->length() == 0) begins_.assign(texts.size(), 0);
    for (std::int64_t i = 0; i < count; ++i) {
      const Tokens& text = texts[static_cast<std::size_t>(i)];
      const std::int64_t seen = std::min(std::ssize(text), time), first = time - seen;
      std::copy(text.end() - seen, text.end(), x.data<std::int64_t>() + i * rows + first);
      if (!cache_) continue;
      std::int64_t& next = begins_[static_cast<std::size_t>(i)];
      for (std::int64_t t = first; t < time; ++t) positions.data<std::int64_t>()[i * rows + t] = next++;
    }
    Batch batch(0, {{"x", x}});
    if (cache_) batch.add("positions", positions);
    tape_.begin({.training = false,
                 .record = false,
                 .compute = compute_,
                 .same_parameters = std::exchange(started_, true),
                 .cache = cache_ ? &*cache_ : nullptr});
    const Batch there = batch.map([&](const Tensor& tensor) { return kernels::on_device(tensor, backend_); });
    const std::optional<models::Model::Head> head = model_.head(tape_, there);
    const Var out = head ? head->x : model_.forward(tape_, there);
    const Var last = reshape(narrow(out, 1, time - 1, 1), {count, out.shape()[2]});
    const Var logits = head ? linear(last, head->weight) : last;
    const Tensor floats = backend_.empty(logits.shape());
    backend_.copy(logits.value(), floats);
    return kernels::on_cpu(floats, &backend_);
  }

  models::Model& model_;
  kernels::Backend& backend_;
  Tape tape_;
  DType compute_;
  std::optional<KeyValueCache> cache_;
  std::vector<std::int64_t> begins_;  // the next position of each text
  bool started_ = false;
};

void check(const models::Model& model, const GenerateOptions& options) {
  if (model.context() == 0) throw UsageError("generate: the model is not a language model");
  const auto in = [](const char* name, double value, const Range& range) {
    if (!range.contains(value)) throw UsageError("--{} {}: must be in {}", name, value, range.text());
  };
  if (options.vocabulary > model.classes())
    throw UsageError("generate: the tokenizer has {} tokens, but the model {}", options.vocabulary,
                     model.classes());
  in("tokens", static_cast<double>(options.tokens), Range::from(0, 1e8));
  in("temperature", options.temperature, Range::from(0, 1000));
  in("top-k", static_cast<double>(options.top_k), Range::from(0, 1e9));
  in("top-p", options.top_p, Range::above(0, 1));
}

}  // namespace

std::vector<Tokens> generate(models::Model& model, kernels::Backend& backend, std::span<const Tokens> prompts,
                             std::size_t first, const GenerateOptions& options,
                             const std::function<void(std::size_t, std::int64_t)>& each) {
  check(model, options);
  TokenSampler sampler(options);
  std::int64_t longest = 0;
  for (const Tokens& prompt : prompts) longest = std::max(longest, std::ssize(prompt) + options.tokens);
  TextReader reader(model, backend, options.compute, longest);
  if (!reader.reads_several() && prompts.size() > 1) {
    std::vector<Tokens> all;
    for (std::size_t i = 0; i < prompts.size(); ++i)
      all.push_back(generate(model, backend, prompts.subspan(i, 1), first + i, options,
                             [&](std::size_t, std::int64_t token) {
                               if (each) each(i, token);
                             })
                        .front());
    return all;
  }
  std::vector<Tokens> texts(prompts.begin(), prompts.end()), continued(prompts.size());
  std::vector<bool> done(prompts.size());
  const auto vocabulary =
      static_cast<std::size_t>(options.vocabulary > 0 ? options.vocabulary : model.classes());
  for (std::int64_t i = 0; i < options.tokens && std::ranges::count(done, false) > 0; ++i) {
    const Tensor logits = reader.logits_after(texts);
    for (std::size_t n = 0; n < texts.size(); ++n) {
      const std::span row(logits.data<float>() + static_cast<std::int64_t>(n) * logits.size(1), vocabulary);
      if (!std::ranges::all_of(row, [](float logit) { return std::isfinite(logit); }))
        throw TrainingError("the model's output after {} of prompt {} is not finite",
                            pluralized(texts[n].size(), "token"), first + n);
      const Random random({options.seed, purpose_of("generate"), first + n, 0});
      const std::int64_t token =
          sampler.draw(row, static_cast<double>(random.uniform(static_cast<std::uint64_t>(i))));
      texts[n].push_back(token);  // the texts read on together
      if (done[n]) continue;
      done[n] = std::ranges::find(options.stop, token) != options.stop.end();
      if (done[n]) continue;
      continued[n].push_back(token);
      if (each) each(n, token);
    }
  }
  return continued;
}

}  // namespace lockstep::train
