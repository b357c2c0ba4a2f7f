// Steady state: once shapes have been seen, forward and backward of every model take no memory from the
// system.
//
// Our code gets memory in two ways: from the system, which is counted on every thread, and from the backend's
// pool, whose size is compared. What oneDNN allocates inside its own calls is only reported.
#include <boost/test/unit_test.hpp>

#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/gradient_sink.h"
#include "support/allocations.h"
#include "support/model_maker.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(steady_state)

struct Work {
  ModelMaker model;
  Batch batch;
  Tensor y;
};

std::vector<Work> all_work() {
  const Tensor images = Tensor::zeros({4, 3, 8, 8}), labels = Tensor::zeros({4}, DType::int64);
  const Tensor tokens = Tensor::zeros({3, 16}, DType::int64);
  const models::Resnet::Options resnet{.blocks = {1, 1}, .width = 16, .in_channels = 3, .classes = 10};
  models::Resnet::Options sync = resnet, resnet_again = resnet, bottlenecks = resnet;
  sync.batch_norm = "sync";
  resnet_again.recompute = true;
  bottlenecks.block = "bottleneck";
  const models::Vit::Options vit{.image_size = 8,
                                 .patch = 2,
                                 .layers = 2,
                                 .heads = 2,
                                 .channels = 32,
                                 .mlp_channels = 64,
                                 .in_channels = 3,
                                 .classes = 10};
  const models::Gpt::Options gpt{
      .layers = 2, .heads = 2, .channels = 32, .context = 16, .vocab = 48, .dropout = 0.1};
  models::Gpt::Options gpt_again = gpt;
  gpt_again.recompute = true;
  const models::Unet::Options unet{.image_size = 8,
                                   .in_channels = 3,
                                   .model_channels = 32,
                                   .out_channels = 6,
                                   .num_res_blocks = 1,
                                   .attention_resolutions = {2},
                                   .channel_mult = {1, 2},
                                   .num_heads = 2,
                                   .use_scale_shift_norm = true,
                                   .num_classes = 10,
                                   .dropout = 0.1};
  models::Unet::Options unet_again = unet;
  unet_again.recompute = true;
  models::Resnet::Options volumes = resnet;
  volumes.dims = 3;
  const models::Unet::Options of_fields{.dims = 3,
                                        .time_embed = false,
                                        .in_channels = 3,
                                        .model_channels = 16,
                                        .out_channels = 8,
                                        .num_res_blocks = 1,
                                        .attention_resolutions = {2},
                                        .channel_mult = {1, 2},
                                        .norm_groups = 4};
  const ModelMaker cosmoflow = ModelMaker::of_keys(
      "cosmoflow",
      {{"image_size", "8"}, {"in_channels", "3"}, {"outputs", "8"}, {"width", "8"}, {"layers", "2"}});
  const Tensor cubes = Tensor::zeros({4, 3, 8, 8, 8}),
               classes_of_positions = Tensor::zeros({4, 8, 8, 8}, DType::int64);
  const Batch noisy(0, {{"x", images}, {"t", Tensor::zeros({4})}, {"y", labels}});
  const Tensor classes_of_pixels = Tensor::zeros({4, 6, 8}, DType::int64);  // logits: the last dimension
  const Batch series(0, {{"x", Tensor::zeros({4, 6, 3})}, {"lengths", Tensor::zeros({4}, DType::int64)}});
  const models::Encoder::Options encoder{.series = {.features = 3, .outputs = 10},
                                         .context = 6,
                                         .layers = 2,
                                         .heads = 2,
                                         .channels = 32,
                                         .mlp_channels = 64,
                                         .dropout = 0.1};
  const models::Rnn::Options rnn{.series = {.features = 3, .outputs = 10, .pooling = models::Pooling::last},
                                 .layers = 2,
                                 .hidden = 16,
                                 .dropout = 0.1};
  models::Rnn::Options lstm = rnn;
  lstm.cell = nn::Cell::lstm;
  return {{ModelMaker::of<models::Encoder>("encoder", encoder), series, labels},
          {ModelMaker::of<models::Rnn>("gru", rnn), series, labels},
          {ModelMaker::of<models::Rnn>("lstm", lstm), series, labels},
          {ModelMaker::of<models::Mlp>("mlp", {.sizes = {192, 64, 32, 10}, .dropout = 0.1}), images, labels},
          {ModelMaker::of<models::Resnet>("resnet", resnet), images, labels},
          {ModelMaker::of<models::Resnet>("resnet, synchronized", sync), images, labels},
          {ModelMaker::of<models::Resnet>("resnet, recomputed", resnet_again), images, labels},
          {ModelMaker::of<models::Resnet>("resnet of bottlenecks", bottlenecks), images, labels},
          {ModelMaker::of<models::Resnet>("resnet of volumes", volumes), cubes, labels},
          {ModelMaker::of<models::Unet>("unet of fields", of_fields), cubes, classes_of_positions},
          {cosmoflow, cubes, labels},
          {ModelMaker::of<models::Vit>("vit", vit), images, labels},
          {ModelMaker::of<models::Gpt>("gpt", gpt), tokens, tokens},
          {ModelMaker::of<models::Gpt>("gpt, recomputed", gpt_again), tokens, tokens},
          {ModelMaker::of<models::Unet>("unet", unet), noisy, classes_of_pixels},
          {ModelMaker::of<models::Unet>("unet, recomputed", unet_again), noisy, classes_of_pixels}};
}

void check_steps_after_the_third(int threads) {
  const auto self = comm::make_self_communicator();
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    for (const Work& work : all_work()) {
      const auto model = work.model.make(1);
      const auto backend = kernels::make_cpu_backend(threads);
      LocalGradients gradients(*model, *backend);
      Tape tape(*backend);
      constexpr int warm = 3, steps = 8;
      BOOST_TEST_CONTEXT(work.model.name << ", " << threads << " threads, " << to_string(compute)) {
        const Allocations made = steady_allocations(*backend, warm, steps, [&](std::uint64_t step) {
          gradients.clear();
          tape.begin({.step = step, .sink = &gradients, .layer_transport = self.get(), .compute = compute});
          backward(cross_entropy(model->forward(tape, work.batch), work.y));
          tape.finish_backward();
          tape.begin({.training = false, .record = false, .compute = compute});
          model->forward(tape, work.batch);
        });
        BOOST_TEST(made.own == 0);
        BOOST_TEST_MESSAGE(work.model.name << ": oneDNN allocated " << made.onednn / (steps - warm)
                                           << " times a step");
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(steps_after_the_third_allocate_nothing) { check_steps_after_the_third(1); }

BOOST_AUTO_TEST_CASE(nor_do_they_on_two_threads) { check_steps_after_the_third(2); }

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
