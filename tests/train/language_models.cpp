// Language models of Hugging Face, from their folders: outputs, greedy texts and trainings as transformers
// has them (tests/golden/language_models.py). Texts with a cache, and documents that share a row.
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "lockstep/optim/adamw.h"
#include "support/world.h"
#include "train/golden_train.h"
#include "train/infer/generate.h"

namespace lockstep::test {
namespace {

BOOST_AUTO_TEST_SUITE(language_models, *golden() * ranks(1))

/// FILE/KIND beside FILE.h5.
std::string folder_of(const GoldenCase& golden) {
  const std::string name = golden.name();
  const std::size_t colon = name.find(": ");
  const std::string file = name.substr(0, colon);
  return golden_files(file, "").front().parent_path() / std::filesystem::path(file).stem() /
         name.substr(colon + 2);
}

/// A folder that LOCKSTEP_GOLDEN names may have none.
void for_each_language_model(const std::function<void(const GoldenCase&)>& check) {
  try {
    golden_files("language_models", ".h5");
  } catch (const DataError& error) {
    if (!std::getenv("LOCKSTEP_GOLDEN")) throw;
    BOOST_TEST_MESSAGE(error.what());
    return;
  }
  for_each_golden_case("language_models", check);
}

train::Config config_of(const GoldenCase& golden) {
  return train::parse_config(
      fmt::format("[model]\nname = {}\n[train]\ninit = {}\nsteps = 1\nglobal_batch = 1\n",
                  golden.what().at("model").get<std::string>(), folder_of(golden)),
      "golden case");
}

/// The model of a folder, on a device.
struct Loaded {
  explicit Loaded(const GoldenCase& golden) : Loaded(config_of(golden)) {
    checkpoint::load_weights(folder_of(golden), *model, world(), "");
  }
  explicit Loaded(const train::Config& config) : model(train::build_model(config)) {}

  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  std::unique_ptr<models::Model> model;
};

BOOST_AUTO_TEST_CASE(outputs_are_those_of_transformers) {
  for_each_language_model([](const GoldenCase& golden) {
    const Loaded loaded(golden);
    Tape tape(*loaded.backend);
    tape.begin({.training = false, .record = false});
    const Tensor found = loaded.model->forward(tape, golden.tensor("x")).value();
    expect(golden, "logits", found, {.of_largest = 1e-5, .smallest_largest = 1});
  });
}

BOOST_AUTO_TEST_CASE(greedy_texts_are_those_of_transformers) {
  for_each_language_model([](const GoldenCase& golden) {
    const Loaded loaded(golden);
    const Tensor x = golden.tensor("x"), wanted = golden.tensor("greedy");
    const train::Tokens prompt(x.data<std::int64_t>(), x.data<std::int64_t>() + 8);
    const auto found = train::generate(*loaded.model, *loaded.backend, std::span(&prompt, 1), 0,
                                       {.tokens = wanted.numel(), .temperature = 0});
    BOOST_TEST(found.front() == train::Tokens(wanted.data<std::int64_t>(), wanted.data<std::int64_t>() + 64),
               golden.name());
  });
}

BOOST_AUTO_TEST_CASE(twenty_steps_of_adamw_are_those_of_pytorch) {
  for_each_language_model([](const GoldenCase& golden) {
    const Loaded loaded(golden);
    const Tensor all = golden.tensor("x"), x = Tensor::empty({all.size(0), all.size(1) - 1}, DType::int64),
                 y = Tensor::empty(x.shape(), DType::int64);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const std::int64_t at = i / x.size(1) * all.size(1) + i % x.size(1);
      x.data<std::int64_t>()[i] = all.data<std::int64_t>()[at];
      y.data<std::int64_t>()[i] = all.data<std::int64_t>()[at + 1];
    }
    LocalGradients gradients(loaded.model->state(), *loaded.backend);
    optim::AdamW adamw(gradients,
                       {.lr = golden.what().at("lr").get<double>(), .betas = {0.9, 0.95}, .weight_decay = 0});
    Tape tape(*loaded.backend);
    const Tensor losses = Tensor::empty({20}, DType::float64);
    for (std::int64_t step = 0; step < losses.numel(); ++step) {
      gradients.clear();
      tape.begin({.step = static_cast<std::uint64_t>(step), .sink = &gradients});
      const auto head = loaded.model->head(tape, x);
      const Loss loss = linear_cross_entropy(head->x, head->weight, y);
      losses.data<double>()[step] = loss.read().sum / loss.read().count;
      gradients.add_count(static_cast<double>(y.numel()));
      backward(loss);
      adamw.step();
    }
    expect(golden, "loss", losses, {.relative = 2e-5});
  });
}

std::vector<train::Config> small_models() {
  std::vector<train::Config> all;
  for (const char* const model :
       {"name = gpt\nlayers = 2\nheads = 2\nchannels = 16\n",
        "name = gpt\nlayers = 2\nheads = 2\nchannels = 16\nbias = false\nrecompute = true\n",
        "name = llama\nlayers = 2\nheads = 4\nkv_heads = 2\nchannels = 16\nhidden = 24\nrecompute = true\n"})
    all.push_back(train::parse_config(
        fmt::format("[model]\n{}context = 24\nvocab = 31\n[train]\nsteps = 1\nglobal_batch = 1\n", model),
        "small model"));
  return all;
}

/// Numbers below 31.
train::Tokens tokens(std::size_t count, std::int64_t seed) {
  train::Tokens found(count);
  for (std::size_t i = 0; i < count; ++i) found[i] = (seed * 7 + static_cast<std::int64_t>(i * i) * 5) % 31;
  return found;
}

BOOST_AUTO_TEST_CASE(texts_do_not_depend_on_those_beside_them) {
  for (const train::Config& config : small_models()) {
    const Loaded loaded(config);
    const std::vector<train::Tokens> prompts{tokens(3, 1), tokens(11, 2), tokens(1, 3)};
    const train::GenerateOptions options{.tokens = 12, .temperature = 1.5, .top_k = 20, .top_p = 0.9};
    const auto together = train::generate(*loaded.model, *loaded.backend, prompts, 5, options);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto alone =
          train::generate(*loaded.model, *loaded.backend, std::span(prompts).subspan(i, 1), 5 + i, options);
      BOOST_TEST(alone.front() == together[i]);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_text_goes_on_beyond_the_context_with_its_second_half) {
  for (const train::Config& config : small_models()) {
    const Loaded loaded(config);
    const train::Tokens prompt = tokens(20, 4);
    const train::GenerateOptions greedy{.tokens = 10, .temperature = 0};
    const auto whole = train::generate(*loaded.model, *loaded.backend, std::span(&prompt, 1), 0, greedy);
    // 20 tokens and 4 more fill the context; the last 12 of the text go on.
    train::Tokens text = prompt;
    text.insert(text.end(), whole.front().begin(), whole.front().begin() + 5);
    text.erase(text.begin(), text.end() - 12);
    const auto rest = train::generate(*loaded.model, *loaded.backend, std::span(&text, 1), 0,
                                      {.tokens = 5, .temperature = 0});
    BOOST_TEST(rest.front() == train::Tokens(whole.front().begin() + 5, whole.front().end()));
  }
}

BOOST_AUTO_TEST_CASE(a_stop_token_ends_a_text_and_does_not_belong_to_it) {
  const Loaded loaded(small_models().front());
  const std::vector<train::Tokens> prompts{tokens(3, 1), tokens(4, 2)};
  train::GenerateOptions options{.tokens = 8, .temperature = 0};
  const auto whole = train::generate(*loaded.model, *loaded.backend, prompts, 0, options);
  options.stop = {whole[0][2]};
  const auto found = train::generate(*loaded.model, *loaded.backend, prompts, 0, options);
  const auto end = std::ranges::find(whole[0], whole[0][2]);
  BOOST_TEST(found[0] == train::Tokens(whole[0].begin(), end));
}

/// Gradients and loss of tokens, whose documents have these lengths.
struct Learned {
  double sum = 0, count = 0;
  std::vector<std::vector<float>> gradients;
};
void learn(Learned& to, LocalGradients& gradients, Tape& tape, models::Model& model,
           const train::Tokens& text, const std::vector<std::int64_t>& documents) {
  const auto time = std::ssize(text);
  const Tensor x = Tensor::empty({1, time}, DType::int64), y = Tensor::empty({1, time}, DType::int64),
               positions = Tensor::empty({1, time}, DType::int64);
  std::int64_t at = 0;
  for (const std::int64_t length : documents) {
    for (std::int64_t i = 0; i < length; ++i, ++at) {
      x.data<std::int64_t>()[at] = text[static_cast<std::size_t>(at)];
      y.data<std::int64_t>()[at] = i + 1 < length ? text[static_cast<std::size_t>(at + 1)] : -100;
      positions.data<std::int64_t>()[at] = i;
    }
  }
  Batch batch(0, {{"x", x}, {"y", y}});
  if (documents.size() > 1) batch.add("positions", positions);
  tape.begin({.sink = &gradients});
  const Loss loss = cross_entropy(model.forward(tape, batch), y);
  to.sum += loss.read().sum;
  to.count += loss.read().count;
  backward(loss);
}

BOOST_AUTO_TEST_CASE(documents_that_share_a_row_are_learned_as_if_alone) {
  for (const train::Config& config : small_models()) {
    Loaded loaded(config);
    const std::vector<std::int64_t> lengths{5, 1, 9, 7};
    const train::Tokens text = tokens(22, 6);
    Tape tape(*loaded.backend);
    LocalGradients together(loaded.model->state(), *loaded.backend);
    Learned packed, alone;
    learn(packed, together, tape, *loaded.model, text, lengths);
    std::vector<std::vector<float>> of_packed;
    for (const Param* const param : together.params())
      of_packed.emplace_back(param->gradient.data<float>(),
                             param->gradient.data<float>() + param->gradient.numel());
    LocalGradients apart(loaded.model->state(), *loaded.backend);
    std::vector<std::vector<double>> of_alone(of_packed.size());
    std::ptrdiff_t at = 0;
    for (const std::int64_t length : lengths) {
      apart.clear();
      learn(alone, apart, tape, *loaded.model, train::Tokens(text.begin() + at, text.begin() + at + length),
            {length});
      at += length;
      for (std::size_t p = 0; p < of_alone.size(); ++p) {
        const Tensor& gradient = apart.params()[p]->gradient;
        of_alone[p].resize(static_cast<std::size_t>(gradient.numel()));
        for (std::size_t i = 0; i < of_alone[p].size(); ++i) of_alone[p][i] += gradient.data<float>()[i];
      }
    }
    BOOST_TEST(packed.count == alone.count);
    BOOST_TEST(std::abs(packed.sum - alone.sum) <= 1e-5 * alone.sum);
    for (std::size_t p = 0; p < of_alone.size(); ++p) {
      double largest = 0, off = 0;
      for (std::size_t i = 0; i < of_alone[p].size(); ++i) {
        largest = std::max(largest, std::abs(of_alone[p][i]));
        off = std::max(off, std::abs(of_alone[p][i] - of_packed[p][i]));
      }
      BOOST_TEST(off <= 1e-5 * std::max(1.0, largest), together.params()[p]->name);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
