// model.recompute changes no bit of a training run, at any number of ranks, shards and micro batches.
#include <boost/test/unit_test.hpp>
#include <memory>

#include "ddp/training.h"
#include "lockstep/optim/sgd.h"
#include "support/model_maker.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(recompute, *ranks(1, 2, 3, 4))

constexpr std::int64_t samples = 4, classes = 11;

using Make = std::function<ModelMaker(bool recompute)>;

ModelMaker gpt(bool recompute) {
  return ModelMaker::of<models::Gpt>("gpt", {.layers = 2,
                                             .heads = 2,
                                             .channels = 16,
                                             .context = 6,
                                             .vocab = classes,
                                             .dropout = 0.2,
                                             .recompute = recompute});
}

Make resnet(const char* batch_norm) {
  return [batch_norm](bool recompute) {
    return ModelMaker::of<models::Resnet>("resnet", {.blocks = {1, 1},
                                                     .width = 8,
                                                     .in_channels = 3,
                                                     .classes = classes,
                                                     .batch_norm = batch_norm,
                                                     .recompute = recompute});
  };
}

ToyShard samples_of(const std::string& model, std::uint64_t step, int shard) {
  const RandomKey key{.seed = 41, .step = step, .shard = static_cast<std::uint32_t>(shard)};
  const auto integers = [&](Shape shape, std::uint64_t purpose) {
    const Random random({.seed = 42, .purpose = purpose, .step = step, .shard = key.shard});
    const Tensor tensor = Tensor::empty(shape, DType::int64);
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      tensor.data<std::int64_t>()[i] = random.below(static_cast<std::uint64_t>(i), classes);
    return tensor;
  };
  if (model == "gpt") return {shard, integers({samples, 6}, 0), integers({samples, 6}, 1)};
  ToyShard made{shard, Tensor::empty({samples, 3, 8, 8}), integers({samples}, 1)};
  fill_normal(made.x, key);
  return made;
}

struct Run {
  Run(const ModelMaker& maker, comm::GradientTransport& transport, ddp::Options options)
      : name(maker.name),
        model(maker.make(5)),
        replicas(*model, transport, *backend, options),
        sgd(replicas, {.lr = 0.05, .momentum = 0.9}) {}

  void step(std::uint64_t step) {
    ToyBatch batch{step, {}};
    const comm::ShardRange block = replicas.shard_map().block(replicas.group().rank());
    for (int shard = block.first; shard < block.end(); ++shard)
      batch.shards.push_back(samples_of(name, step, shard));
    replicas.step(batch, [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
      return cross_entropy(model->forward(tape, piece.rows(shard.x)), piece.rows(shard.y));
    });
    sgd.step();
  }

  std::string name;
  std::unique_ptr<models::Model> model;
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas;
  optim::Sgd sgd;
};

void check_same_run(Run& found, Run& wanted) {
  for (std::uint64_t step = 0; step < 3; ++step) {
    found.step(step);
    wanted.step(step);
    check_same_state(*found.model, *wanted.model);
  }
}

BOOST_AUTO_TEST_CASE(recomputing_changes_no_bit) {
  for (const auto& [make, sync] :
       {std::pair{Make(gpt), false}, {resnet("plain"), false}, {resnet("sync"), true}}) {
    for (const int micro_batches : {1, 2}) {
      const DType compute = micro_batches == 1 ? DType::float32 : DType::bfloat16;
      BOOST_TEST_CONTEXT(make(true).name << (sync ? ", synchronized, " : ", ") << micro_batches) {
        const ddp::Options options{.bucket_mb = 0.001,
                                   .shards = 2 * world().size() + 1,
                                   .micro_batches = micro_batches,
                                   .seed = 3,
                                   .compute = compute};
        Run again(make(true), world(), options), kept(make(false), world(), options);
        check_same_run(again, kept);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_run_that_recomputes_has_the_bits_of_one_process) {
  const auto alone = comm::make_self_communicator();
  for (const ModelMaker& maker : {gpt(true), resnet("plain")(true)}) {
    BOOST_TEST_CONTEXT(maker.name) {
      const ddp::Options options{.bucket_mb = 0.001, .shards = 2 * world().size() + 1, .seed = 3};
      Run many(maker, world(), options), one(maker, *alone, options);
      check_same_run(many, one);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
