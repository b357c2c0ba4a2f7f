// Shards, batch and seed are said once, and a run keeps them.
#include <boost/test/unit_test.hpp>

#include "checkpoint/sample.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/sgd.h"
#include "support/context.h"
#include "support/mentions.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(run_shape, *ranks(1, 2, 3, 4))

/// Sample i is x = i.
class Counted final : public data::Dataset {
 public:
  std::int64_t size() const override { return 100; }
  const std::vector<data::Field>& fields() const override { return fields_; }
  std::string name() const override { return "counted"; }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    for (std::size_t i = 0; i < samples.size(); ++i)
      into[0].data<float>()[i] = static_cast<float>(samples[i]);
  }

 private:
  std::vector<data::Field> fields_{{.name = "x", .shape = {1}}};
};

struct Line : nn::Module {
  nn::Linear line{*this, "line", 1, 1};
  Var forward(Tape& tape, const Batch& batch) { return line(tape.batch(batch["x"])); }
};

constexpr RunShape usual{.global_batch = 24, .shards = 4, .seed = 7};

/// A program's loop: `steps` more steps after those of its run directory.
std::int64_t train(TestContext& context, const std::string& run, int steps) {
  Line model;
  ddp::DataParallel replicas(model, context);
  optim::Sgd sgd(replicas, {.lr = 1e-5});
  const Counted data;
  data::Loader loader(data, context);
  checkpoint::Store store(run, context);
  const std::int64_t first = store.resume(model, sgd);
  for (std::int64_t step = first; step < first + steps; ++step) {
    replicas.step(loader.at(step), [&](Tape& tape, const Batch& batch) {
      return mse(model.forward(tape, batch), batch["x"]);
    });
    sgd.step();
  }
  store.save(first + steps, model, sgd);
  return first;
}

BOOST_AUTO_TEST_CASE(a_resume_under_another_shape_is_refused_with_both_values) {
  const SharedFolder folder(world());
  const std::string run = folder.file("run");
  const auto resumes = [&](const RunShape& shape) {
    TestContext context;
    context.set_run(shape);
    return train(context, run, 1);
  };
  BOOST_TEST(resumes(usual) == 0);
  BOOST_TEST(resumes(usual) == 1);
  const auto refuses = [&](const RunShape& shape, const char* was, const char* is) {
    BOOST_CHECK_EXCEPTION(resumes(shape), UsageError, mentions("step-000000002.h5", was, is));
  };
  refuses({.global_batch = 24, .shards = 6, .seed = 7}, "shards 4", "this run has 6");
  refuses({.global_batch = 48, .shards = 4, .seed = 7}, "global batch of 24", "this run has 48");
  refuses({.global_batch = 24, .shards = 4, .seed = 8}, "seed 7", "this run has 8");
  BOOST_TEST(resumes(usual) == 2);
}

BOOST_AUTO_TEST_CASE(a_store_without_a_schedule_checks_what_the_optimizers_gradients_come_from) {
  const SharedFolder folder(world());
  const auto backend = kernels::make_cpu_backend();
  const auto resumes = [&](const ddp::Options& options) {
    Line model;
    ddp::DataParallel replicas(model, world(), *backend, options);
    optim::Sgd sgd(replicas, {.lr = 1e-5});
    checkpoint::Store store(folder.file("run"), world());
    const std::int64_t first = store.resume(model, sgd);
    if (first == 0) store.save(1, model, sgd);
    return first;
  };
  BOOST_TEST(resumes({.shards = 4, .seed = 3}) == 0);
  BOOST_CHECK_EXCEPTION(resumes({.shards = 5, .seed = 3}), UsageError,
                        mentions("shards 4", "this run has 5"));
  BOOST_CHECK_EXCEPTION(resumes({.shards = 4, .seed = 2}), UsageError, mentions("seed 3", "this run has 2"));
  BOOST_TEST(resumes({.shards = 4, .seed = 3}) == 1);
}

BOOST_AUTO_TEST_CASE(a_checkpoint_that_does_not_say_its_shape_is_resumed) {
  const SharedFolder folder(world());
  const std::string run = folder.file("run");
  Line model;
  { checkpoint::Store(run, world()).save(1, model); }
  TestContext context;
  context.set_run(usual);
  BOOST_TEST(checkpoint::Store(run, context).resume(model) == 1);
}

BOOST_AUTO_TEST_CASE(a_store_and_a_data_parallel_of_other_shapes_are_refused) {
  const SharedFolder folder(world());
  TestContext context;
  Line model;
  ddp::DataParallel replicas(model, world(), context.backend(), {.shards = 5});
  optim::Sgd sgd(replicas, {.lr = 1});
  context.set_run(usual);
  checkpoint::Store store(folder.file("run"), context);
  BOOST_CHECK_EXCEPTION(store.save(1, model, sgd), UsageError, mentions("shards 4", "has 5"));
}

BOOST_AUTO_TEST_CASE(a_data_parallel_takes_shards_and_seed_of_the_run_and_refuses_others) {
  TestContext context;
  context.set_run(usual);
  Line model;
  {
    const ddp::DataParallel replicas(model, context);
    BOOST_TEST((replicas.run() == usual));
    BOOST_TEST(replicas.options().seed == 7u);
    BOOST_TEST(replicas.shard_map().shards() == 4);
  }
  BOOST_CHECK_EXCEPTION(ddp::DataParallel(model, context, {.shards = 5}), UsageError,
                        mentions("shards = 5", "shards = 4"));
  BOOST_CHECK_EXCEPTION(ddp::DataParallel(model, context, {.seed = 1}), UsageError,
                        mentions("seed = 1", "seed = 7"));
}

BOOST_AUTO_TEST_CASE(a_loader_gives_the_batches_of_the_run) {
  TestContext context;
  context.set_run(usual);
  const Counted data;
  data::Loader loader(data, context), spelled(data, {.global_batch = 24, .shards = 4, .seed = 7}, world());
  for (std::int64_t step = 0; step < 3; ++step) {
    const data::StepBatch &batch = loader.at(step), &wanted = spelled.at(step);
    BOOST_REQUIRE(batch.shards.size() == wanted.shards.size());
    for (std::size_t i = 0; i < batch.shards.size(); ++i) {
      const Tensor x = batch.shards[i]["x"], y = wanted.shards[i]["x"];
      BOOST_TEST(std::equal(x.data<float>(), x.data<float>() + x.numel(), y.data<float>()));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_loader_asks_for_the_global_batch) {
  TestContext context;
  const Counted data;
  BOOST_CHECK_EXCEPTION(data::Loader(data, context), UsageError, mentions("session.set_run("));
}

BOOST_AUTO_TEST_CASE(without_a_number_there_is_one_shard_a_rank) {
  TestContext context;
  context.set_run({.global_batch = 12});
  BOOST_TEST(context.run().shards == world().size());
}

BOOST_AUTO_TEST_CASE(what_cannot_be_a_run_is_the_same_error_on_every_rank) {
  TestContext context;
  const auto refused = [&](const RunShape& shape, const std::string& text) {
    BOOST_CHECK_EXCEPTION(context.set_run(shape), UsageError, mentions(text));
  };
  refused({.global_batch = 25, .shards = 4}, "4 shards do not divide a global batch of 25");
  refused({.global_batch = -4, .shards = 4}, "no value may be negative");
  refused({.global_batch = 24, .shards = -1}, "no value may be negative");
  if (world().size() > 1) {
    refused({.global_batch = 24, .shards = 1}, "but only 1 shards");
    const int mine = world().rank() == 1 ? 8 : 4;
    refused({.global_batch = 24, .shards = mine}, "8 shards and seed 0' on rank 1");
  }
}

BOOST_AUTO_TEST_CASE(a_run_is_said_before_anything_is_made_of_it) {
  TestContext context;
  Line model;
  const ddp::DataParallel replicas(model, context);
  BOOST_CHECK_EXCEPTION(context.set_run(usual), UsageError, mentions("too late"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
