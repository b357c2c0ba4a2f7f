// From step 4 on a whole training step, from reading the batch to the averages, asks the system for no
// memory.
#include <boost/test/unit_test.hpp>
#include <optional>

#include "lockstep/autograd/functions.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/hdf5/file.h"
#include "lockstep/optim/schedule.h"
#include "support/allocations.h"
#include "support/temporary_folder.h"
#include "support/world.h"
#include "train/components.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(steady_state, *ranks(1, 2))

/// 60 images [3, 8, 8] of 10 classes.
std::string make_images(const TemporaryFolder& folder) {
  constexpr std::size_t images = 60, elements = 3 * 8 * 8;
  std::vector<std::uint8_t> bytes(images * elements);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * i / 7);
  std::vector<std::int64_t> labels(images);
  for (std::size_t i = 0; i < images; ++i) labels[i] = static_cast<std::int64_t>(i % 10);
  hdf5::File file = hdf5::File::create(folder.file("images.h5"));
  file.create_dataset("x", DType::uint8, {images, 3, 8, 8}).write(std::span<const std::uint8_t>(bytes));
  file.create_dataset("y", DType::int64, {images}).write(std::span<const std::int64_t>(labels));
  file.close();
  return folder.file("images.h5");
}

/// 1000 tokens of a vocabulary of 48.
std::string make_text(const TemporaryFolder& folder) {
  std::vector<std::uint16_t> tokens(1000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i * i % 48);
  hdf5::File file = hdf5::File::create(folder.file("text.h5"));
  hdf5::Dataset data =
      file.create_dataset("tokens", DType::uint16, {static_cast<std::int64_t>(tokens.size())});
  data.write(std::span<const std::uint16_t>(tokens));
  data.set_attribute("vocabulary", 48);
  data.set_attribute("tokenizer", "made up");
  file.close();
  return folder.file("text.h5");
}

/// A training run as the configuration describes it, without metrics and checkpoints.
class Run {
 public:
  explicit Run(const train::Config& config)
      : config_(config),
        backend_(kernels::make_cpu_backend(config.train.threads)),
        model_(train::build_model(config)),
        data_(config, *model_),
        replicas_(*model_, world(), *backend_,
                  {.bucket_mb = config.ddp.bucket_mb,
                   .first_bucket_mb = config.ddp.first_bucket_mb,
                   .shards = config.ddp.shards,
                   .seed = config.ddp.seed}),
        optimizer_(config.optimizer.make(replicas_)),
        ema_(train::build_ema(config, *model_, *backend_)),
        loader_(data_.train(),
                {.global_batch = config.train.global_batch,
                 .shards = config.ddp.shards,
                 .seed = config.ddp.seed,
                 .augment = {.crop_padding = config.data.augment.crop_padding ? 1 : 0,
                             .flip = config.data.augment.flip}},
                world()),
        schedule_(config.optimizer.schedule) {
    optimizer_->attach(*ema_);
  }

  void step(std::int64_t number) {
    const optim::StepOptions update{.lr = schedule_.at(number, config_.train.steps),
                                    .clip = config_.optimizer.clip,
                                    .measure_norm = number % 2 == 0};
    replicas_.request({});
    loss_sum_ += replicas_
                     .step(
                         loader_.at(number),
                         [&](Tape& tape, const Batch& shard, const ddp::MicroBatch& piece) {
                           const Batch samples = piece.rows(shard);
                           return cross_entropy(
                               model_->forward(tape, samples), samples["y"],
                               {.label_smoothing = static_cast<float>(config_.train.label_smoothing)});
                         },
                         optimizer_->measurement_for(update))
                     .mean_loss();
    optimizer_->step(update);
  }

  std::size_t reserved_bytes() const { return backend_->reserved_bytes(); }
  double loss_sum() const { return loss_sum_; }

 private:
  const train::Config& config_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<models::Model> model_;
  train::DataSets data_;
  ddp::DataParallel replicas_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::Ema> ema_;
  data::Loader loader_;
  optim::Schedule schedule_;
  double loss_sum_ = 0;
};

/// Runs 3 steps, then counts over 9, which pass an epoch's end.
void check_steady_at(int threads, const std::string& model, const std::string& data) {
  constexpr int warm = 3, steps = 12;
  const train::Config config = train::parse_config(
      "[model]\n" + model + "[data]\n" + data +
          "[train]\nsteps = 12\nglobal_batch = 24\nshards = 4\nlabel_smoothing = 0.1\n"
          "[optimizer]\nname = adamw\nlr = 1e-3\nweight_decay = 0.1\nclip = 0.5\n"
          "schedule = cosine\nwarmup_steps = 2\n[ema]\nrates = 0.9 0.99\nsigma_rel = 0.1\n"
          "[ddp]\nbucket_mb = 0.01\nfirst_bucket_mb = 0.001\n",
      "the test", {"train.threads=" + std::to_string(threads)});
  Run run(config);
  BOOST_TEST_CONTEXT(config.model.name() << ", " << threads << " threads") {
    const Allocations made =
        steady_allocations(run, warm, steps, [&](std::uint64_t number) { run.step(number); });
    BOOST_TEST(made.own == 0);
    BOOST_TEST(run.loss_sum() > 0);
    BOOST_TEST_MESSAGE(config.model.name()
                       << ", " << threads << " threads: in " << steps - warm << " steps oneDNN made "
                       << made.onednn << " allocations of its own, other libraries " << made.others);
  }
}

/// Several ranks of several threads would only wait for each other's processors.
void check_steady(const std::string& model, const std::string& data) {
  check_steady_at(1, model, data);
  if (world().size() == 1) check_steady_at(2, model, data);
}

BOOST_AUTO_TEST_CASE(training_an_mlp_allocates_nothing) {
  const TemporaryFolder folder;
  check_steady("name = mlp\nsizes = 192 64 32 10\ndropout = 0.1\n",
               "train = " + make_images(folder) + "\naugment = flip\n");
}

BOOST_AUTO_TEST_CASE(training_a_resnet_allocates_nothing) {
  const TemporaryFolder folder;
  check_steady("name = resnet\nblocks = 1 1\nwidth = 16\nin_channels = 3\nclasses = 10\n",
               "train = " + make_images(folder) + "\naugment = crop flip\n");
}

BOOST_AUTO_TEST_CASE(training_a_gpt_allocates_nothing) {
  const TemporaryFolder folder;
  check_steady("name = gpt\nlayers = 2\nheads = 2\nchannels = 32\ncontext = 16\nvocab = 48\ndropout = 0.1\n",
               "train = " + make_text(folder) + "\n");
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
