// model.recompute: the gradients of kept activations, from less memory.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstring>

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/gradient_sink.h"
#include "support/model_maker.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(recompute)

struct Work {
  ModelMaker model;
  Tensor x, y;
};

Work gpt(std::int64_t layers, bool recompute) {
  const Tensor tokens = Tensor::zeros({4, 16}, DType::int64);
  for (std::int64_t i = 0; i < tokens.numel(); ++i) tokens.data<std::int64_t>()[i] = i * i % 48;
  return {ModelMaker::of<models::Gpt>("gpt", {.layers = layers,
                                              .heads = 2,
                                              .channels = 32,
                                              .context = 16,
                                              .vocab = 48,
                                              .dropout = 0.1,
                                              .recompute = recompute}),
          tokens, tokens};
}

Work resnet(std::int64_t blocks, bool recompute) {
  const Tensor images = Tensor::empty({8, 3, 16, 16}), labels = Tensor::zeros({8}, DType::int64);
  const Random random({.seed = 2});
  for (std::int64_t i = 0; i < images.numel(); ++i)
    images.data<float>()[i] = random.normal(static_cast<std::uint64_t>(i));
  return {ModelMaker::of<models::Resnet>(
              "resnet",
              {.blocks = {blocks}, .width = 16, .in_channels = 3, .classes = 10, .recompute = recompute}),
          images, labels};
}

Work vit(std::int64_t layers, bool recompute) {
  Work work = resnet(1, false);
  work.model = ModelMaker::of<models::Vit>("vit", {.image_size = 16,
                                                   .patch = 4,
                                                   .layers = layers,
                                                   .heads = 2,
                                                   .channels = 32,
                                                   .mlp_channels = 64,
                                                   .in_channels = 3,
                                                   .classes = 10,
                                                   .dropout = 0.1,
                                                   .recompute = recompute});
  return work;
}

struct Found {
  std::vector<std::vector<float>> gradients, running;
  std::size_t bytes = 0;  ///< that the pool has taken from the system
};

Found run(const Work& work, DType compute = DType::float32) {
  const auto backend = kernels::make_cpu_backend();
  const auto model = work.model.make(1);
  LocalGradients gradients(*model, *backend);
  Tape tape(*backend);
  Found found;
  const auto elements = [](const Tensor& tensor) {
    return std::vector<float>(tensor.data<float>(), tensor.data<float>() + tensor.numel());
  };
  for (std::uint64_t step = 0; step < 2; ++step) {
    gradients.clear();
    tape.begin({.seed = 4, .step = step, .sink = &gradients, .compute = compute});
    backward(cross_entropy(model->forward(tape, work.x), work.y));
    tape.finish_backward();
    for (const Param* const param : gradients.params()) found.gradients.push_back(elements(param->gradient));
  }
  for (const Buffer* const buffer : model->state().buffers)
    if (buffer->value.dtype() == DType::float32) found.running.push_back(elements(buffer->value));
  found.bytes = backend->reserved_bytes();
  return found;
}

BOOST_AUTO_TEST_CASE(gradients_and_running_statistics_have_the_same_bits) {
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    for (const auto& work : {gpt, resnet, vit}) {
      const Found kept = run(work(2, false), compute), again = run(work(2, true), compute);
      BOOST_TEST((again.gradients == kept.gradients),
                 work(2, true).model.name << " in " << to_string(compute));
      BOOST_TEST((again.running == kept.running), work(2, true).model.name << " in " << to_string(compute));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_further_block_takes_the_memory_of_its_input_and_its_gradients) {
  const auto bytes_of_a_block = [](Work (*work)(std::int64_t, bool), bool recompute) {
    constexpr std::int64_t few = 2, many = 6;
    return (run(work(many, recompute)).bytes - run(work(few, recompute)).bytes) / (many - few);
  };
  constexpr std::size_t rows = 4 * 16, channels = 32,
                        gpt_gradients = 12 * channels * channels + 13 * channels;
  const std::size_t gpt_kept = bytes_of_a_block(gpt, false), gpt_again = bytes_of_a_block(gpt, true);
  BOOST_TEST(gpt_again <= sizeof(float) * (rows * channels + gpt_gradients) * 11 / 10);
  BOOST_TEST(gpt_kept - sizeof(float) * gpt_gradients >= 10 * sizeof(float) * rows * channels);

  constexpr std::size_t image = 8 * 16 * 16 * 16, gradients = 2 * (9 * 16 * 16 + 2 * 16);
  const std::size_t kept = bytes_of_a_block(resnet, false), again = bytes_of_a_block(resnet, true);
  BOOST_TEST(again <= sizeof(float) * (image + gradients) * 11 / 10);
  BOOST_TEST(kept >= sizeof(float) * (4 * image + gradients));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
