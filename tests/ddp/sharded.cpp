// A sharded optimizer: each rank updates a part of every parameter, and nothing else is different.
#include <mpi.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <memory>
#include <optional>

#include "comm/mpi_communicator.h"
#include "ddp/forwarding.h"
#include "ddp/toy.h"
#include "lockstep/base/clock.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/sgd.h"
#include "support/allocations.h"

namespace lockstep::test {
namespace {

/// Shards of several blocks that no number of ranks divides, tensors far below a block, one without elements,
/// a frozen one, and one that only even shards of even steps use.
struct Wide {
  static constexpr std::int64_t width = 131;
  Wide()
      : params{make_param("in.weight", {width, 5}),
               make_param("in.bias", {width}),
               make_param("middle.weight", {width, width}),
               make_param("fixed.weight", {width, width}),
               make_param("nothing", {0, 3}),
               make_param("rare.weight", {width, width}),
               make_param("out.weight", {4, width}),
               make_param("out.bias", {4})} {
    for (Param& param : params) {
      for (std::int64_t i = 0; i < param.value.numel(); ++i) param.value.data<float>()[i] *= 0.1f;
    }
    params[3].trainable = false;
  }
  Wide(const Wide&) = delete;
  Wide& operator=(const Wide&) = delete;

  ModelState state() {
    ModelState state;
    for (Param& param : params) state.params.push_back(&param);
    return state;
  }
  Loss loss(Tape& tape, const ToyShard& shard, const ddp::Piece& piece) {
    Var h = relu(linear(tape.constant(piece.rows(shard.x)), tape.use(params[0]), tape.use(params[1])));
    h = relu(linear(h, tape.use(params[2])));
    if (shard.index % 2 == 0 && tape.pass().step % 2 == 0) h = h + linear(h, tape.use(params[5]));
    h = h + linear(h, tape.use(params[3]));
    return mse(linear(h, tape.use(params[6]), tape.use(params[7])), piece.rows(shard.y));
  }
  std::vector<std::vector<float>> values() const {
    std::vector<std::vector<float>> all;
    for (const Param& param : params) {
      param.settle();
      all.push_back(elements(param.value));
    }
    return all;
  }
  std::vector<Param> params;
};

enum class Algorithm { adamw, sgd };

std::unique_ptr<optim::Optimizer> make_optimizer(Algorithm algorithm, GradientSource& source) {
  if (algorithm == Algorithm::sgd)
    return std::make_unique<optim::Sgd>(
        source, optim::SgdOptions{.lr = 0.01, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01});
  return std::make_unique<optim::AdamW>(
      source, optim::AdamWOptions{.lr = 0.01,
                                  .weight_decay = 0.1,
                                  .groups = {{.pattern = "out.*", .lr_factor = 0.5, .decay_factor = 2},
                                             {.pattern = "in.bias", .lr_factor = 2}}});
}

struct Run {
  explicit Run(const ddp::Options& options, Algorithm algorithm = Algorithm::adamw,
               comm::Communicator& communicator = world())
      : backend(kernels::make_cpu_backend()),
        replicas(model.state(), communicator, *backend, options),
        optimizer(make_optimizer(algorithm, replicas)),
        ema(model.state(), *backend, {0.5, 0.9}, {.sharding = replicas.sharding()}) {
    optimizer->attach(ema);
  }
  /// Returns the gradient norm.
  double step(std::uint64_t number) {
    replicas.step(toy_batch(number, replicas),
                  [&](Tape& tape, const ToyShard& shard, const ddp::Piece& piece) {
                    return model.loss(tape, shard, piece);
                  });
    return optimizer->step({.clip = 0.5}).gradient_norm;
  }

  Wide model;
  std::unique_ptr<kernels::Backend> backend;
  ddp::DataParallel replicas;
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::Ema ema;
};

ddp::Options usual(bool sharded) {
  return {.bucket_mb = 0.02,
          .first_bucket_mb = 0.005,
          .shards = 7,
          .unused = ddp::Unused::allow,
          .sharded_optimizer = sharded};
}

void check_same(Run& a, Run& b) {
  BOOST_TEST((a.model.values() == b.model.values()));
  const auto shadows_a = a.ema.shadows(), shadows_b = b.ema.shadows();
  BOOST_REQUIRE(shadows_a.size() == shadows_b.size());
  for (std::size_t i = 0; i < shadows_a.size(); ++i)
    BOOST_TEST(same_bits(elements(shadows_a[i].tensor), elements(shadows_b[i].tensor)), shadows_a[i].name);
  const auto slots_a = a.optimizer->slots(), slots_b = b.optimizer->slots();
  BOOST_REQUIRE(slots_a.size() == slots_b.size());
  for (std::size_t s = 0; s < slots_a.size(); ++s) {
    for (std::size_t e = 0; e < slots_a[s].entries.size(); ++e) {
      const Tensor &left = slots_a[s].entries[e].tensor, &right = slots_b[s].entries[e].tensor;
      BOOST_TEST(left.bytes() == right.bytes());
      BOOST_TEST(std::equal(static_cast<const char*>(left.raw()),
                            static_cast<const char*>(left.raw()) + left.bytes(),
                            static_cast<const char*>(right.raw())),
                 slots_a[s].name << " of " << slots_a[s].entries[e].name);
    }
  }
}

/// Steps of both, with the same norms; then everything is the same.
void check_same_steps(Run& whole, Run& parts, std::uint64_t steps = 5) {
  for (std::uint64_t step = 0; step < steps; ++step) BOOST_TEST(whole.step(step) == parts.step(step));
  check_same(whole, parts);
}

BOOST_AUTO_TEST_CASE(every_algorithm_and_mode_gives_the_bits_of_whole_updates) {
  for (const Algorithm algorithm : {Algorithm::adamw, Algorithm::sgd}) {
    Run whole(usual(false), algorithm);
    for (std::uint64_t step = 0; step < 5; ++step) whole.step(step);
    for (const ddp::Mode mode : {ddp::Mode::overlapped, ddp::Mode::flat, ddp::Mode::per_parameter}) {
      ddp::Options options = usual(true);
      options.mode = mode;
      Run parts(options, algorithm);
      for (std::uint64_t step = 0; step < 5; ++step) parts.step(step);
      check_same(whole, parts);
    }
  }
}

BOOST_AUTO_TEST_CASE(any_size_of_buckets_and_pieces_gives_the_bits_of_whole_updates) {
  for (const double bucket_mb : {tiny_mb, 25.0}) {
    ddp::Options options = usual(false);
    options.micro_batches = 2;
    options.bucket_mb = options.first_bucket_mb = bucket_mb;
    Run whole(options);
    options.sharded_optimizer = true;
    Run parts(options);
    check_same_steps(whole, parts);
  }
}

BOOST_AUTO_TEST_CASE(a_model_far_smaller_than_the_ranks_blocks_trains_the_same) {
  const auto train = [](bool sharded) {
    Net net;
    const auto backend = kernels::make_cpu_backend();
    ddp::DataParallel replicas(net.state(), world(), *backend, {.shards = 5, .sharded_optimizer = sharded});
    optim::AdamW adamw(replicas);
    for (std::uint64_t step = 0; step < 4; ++step) {
      replicas.step(toy_batch(step, replicas),
                    [&](Tape& tape, const ToyShard& shard) { return net.loss(tape, shard.x, shard.y); });
      adamw.step({.clip = 1});
    }
    Gradients values;
    for (const Param& param : net.params) {
      param.settle();
      values.push_back(elements(param.value));
    }
    return values;
  };
  BOOST_TEST((train(true) == train(false)));
}

/// Every rank on a machine of its own, as far as the transport knows; small pieces.
BOOST_AUTO_TEST_CASE(ranks_on_different_machines_get_the_bits_of_whole_updates) {
  std::vector<int> node_of_rank(static_cast<std::size_t>(world().size()));
  for (const int ranks_a_node : {1, 2}) {
    for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank)
      node_of_rank[rank] = static_cast<int>(rank) / ranks_a_node;
    int initialised = 0;
    MPI_Initialized(&initialised);
    if (!initialised) return;  // alone
    const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, node_of_rank, {.piece_bytes = 4096});
    Run whole(usual(false)), parts(usual(true), Algorithm::adamw, *nodes);
    check_same_steps(whole, parts);
  }
}

/// Buckets that sum plainly, by way of a hook.
class PlainSums final : public ddp::Hook {
 public:
  std::string describe() const override { return "plain sums"; }
  void bind(ddp::Buckets& buckets) override { buckets_ = &buckets; }
  void begin_step(std::uint64_t) override { last_ = 0; }
  void start(int bucket) override { last_ = std::max(last_, buckets_->start_sum(bucket)); }
  void finish() override {
    if (last_ != 0) buckets_->communicator().wait(last_);
  }

 private:
  ddp::Buckets* buckets_ = nullptr;
  comm::Ticket last_ = 0;
};

BOOST_AUTO_TEST_CASE(a_hook_gives_whole_sums_of_which_each_rank_reads_its_part) {
  ddp::Options options = usual(true);
  options.hook = std::make_shared<PlainSums>();
  Run whole(usual(false)), parts(options);
  check_same_steps(whole, parts);
}

BOOST_AUTO_TEST_CASE(sums_are_there_for_the_owned_elements) {
  Run whole(usual(false)), parts(usual(true));
  for (Run* const run : {&whole, &parts})
    run->replicas.step(toy_batch(0, run->replicas),
                       [&](Tape& tape, const ToyShard& shard, const ddp::Piece& piece) {
                         return run->model.loss(tape, shard, piece);
                       });
  const Sharding& sharding = *parts.replicas.sharding();
  BOOST_TEST(!whole.replicas.sharding());
  for (std::size_t p = 0; p < parts.model.params.size(); ++p) {
    const Tensor &mine = parts.model.params[p].gradient, &all = whole.model.params[p].gradient;
    BOOST_REQUIRE(bool(mine) == bool(all));
    if (mine) BOOST_TEST(same_bits(elements(sharding.part(p, mine)), elements(sharding.part(p, all))));
  }
}

BOOST_AUTO_TEST_CASE(memory_for_optimizer_and_averages_is_divided_by_the_ranks) {
  Run whole(usual(false)), parts(usual(true));
  const auto bytes = [](const Run& run) {
    const optim::StateBytes slots = run.optimizer->state_bytes(), shadows = run.ema.state_bytes();
    return optim::StateBytes{slots.held + shadows.held, slots.whole + shadows.whole};
  };
  const optim::StateBytes all = bytes(whole), mine = bytes(parts);
  BOOST_TEST(all.held == all.whole);
  BOOST_TEST(mine.whole == all.whole);
  // All ranks together hold each element once, and no rank more than its part (two slots of trainable
  // parameters, two averages of all) and the counts of updates.
  const std::size_t counts = 7 * sizeof(std::int64_t);
  std::vector<std::size_t> of_rank(static_cast<std::size_t>(world().size()));
  world().all_gather(&mine.held, sizeof mine.held, of_rank.data());
  std::size_t sum = counts, part = counts;
  for (const std::size_t held : of_rank) sum += held - counts;
  BOOST_TEST(sum == all.held);
  for (std::size_t p = 0; p < parts.model.params.size(); ++p)
    part += (parts.model.params[p].trainable ? 4u : 2u) * sizeof(float) *
            static_cast<std::size_t>(parts.replicas.sharding()->mine(p).count);
  BOOST_TEST(mine.held == part);
}

BOOST_AUTO_TEST_CASE(the_model_keeps_its_values_when_data_parallel_goes) {
  Wide model;
  const auto backend = kernels::make_cpu_backend();
  std::vector<std::vector<float>> trained;
  {
    ddp::DataParallel replicas(model.state(), world(), *backend, usual(true));
    optim::Sgd sgd(replicas);
    for (std::uint64_t step = 0; step < 2; ++step) {
      replicas.step(toy_batch(step, replicas),
                    [&](Tape& tape, const ToyShard& shard, const ddp::Piece& piece) {
                      return model.loss(tape, shard, piece);
                    });
      if (step == 1) trained = model.values();
      sgd.step();
    }
  }  // with parameters on their way
  const auto kept = model.values();
  BOOST_TEST((kept != trained));
  for (const Param& param : model.params) {
    BOOST_TEST(!param.arrivals);
    BOOST_TEST(!param.gradient);
  }
  Run whole(usual(false), Algorithm::sgd);
  Wide reference;
  ddp::DataParallel replicas(reference.state(), world(), *backend, usual(false));
  optim::Sgd sgd(replicas);
  for (std::uint64_t step = 0; step < 2; ++step) {
    replicas.step(toy_batch(step, replicas), [&](Tape& tape, const ToyShard& shard, const ddp::Piece& piece) {
      return reference.loss(tape, shard, piece);
    });
    sgd.step();
  }
  BOOST_TEST((kept == reference.values()));
}

BOOST_AUTO_TEST_CASE(after_a_step_that_failed_training_goes_on_with_the_same_bits) {
  Run whole(usual(false)), parts(usual(true));
  for (std::uint64_t step = 0; step < 4; ++step) {
    whole.step(step);
    const auto failing = [&](Tape& tape, const ToyShard& shard, const ddp::Piece& piece) -> Loss {
      if (shard.index == 3) throw DataError("shard 3 cannot be read");
      return parts.model.loss(tape, shard, piece);
    };
    const std::string text =
        same_error(ExitCode::data, [&] { parts.replicas.step(toy_batch(step, parts.replicas), failing); });
    BOOST_TEST(contains(text, "shard 3 cannot be read"));
    parts.step(step);
  }
  check_same(whole, parts);
}

BOOST_AUTO_TEST_CASE(a_value_in_other_memory_is_refused_before_the_step) {
  Run run(usual(true));
  run.step(0);
  run.step(1);
  const std::string text = same_error(ExitCode::usage, [&] {
    const auto evaluation = run.ema.swap_in("0.5");
    run.step(2);
  });
  BOOST_TEST(contains(text, "in.weight"));
  BOOST_TEST(contains(text, "swapped in"));
  run.step(2);  // shadows are out again
}

BOOST_AUTO_TEST_CASE(evaluation_and_comparison_between_steps_see_whole_values) {
  Run whole(usual(false)), parts(usual(true));
  const auto evaluate = [](Run& run) {
    run.replicas.tape().begin({.training = false, .record = false});
    return run.model.loss(run.replicas.tape(), toy_shard(99, 0), {}).total.sum;
  };
  for (std::uint64_t step = 0; step < 4; ++step) {
    whole.step(step);
    parts.step(step);
    if (step % 2 == 0) BOOST_TEST(evaluate(whole) == evaluate(parts));
    parts.replicas.check_replicas();
    const auto in_whole = whole.ema.swap_in("0.9"), in_parts = parts.ema.swap_in("0.9");
    BOOST_TEST(evaluate(whole) == evaluate(parts));
  }
}

/// Watches gathers of parameters, and can hold up waiting for them.
class Watching final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  comm::Ticket start_all_gather(const comm::TreeSum& vector, const comm::Slices& slices) override {
    const comm::Ticket ticket = Forwarding::start_all_gather(vector, slices);
    if (vector.dtype != DType::float32) return ticket;  // the norm's blocks
    ++started;
    newest = ticket;
    return ticket;
  }
  void wait(comm::Ticket ticket) override {
    if (ticket == newest) {
      const Stopwatch watch;
      while (watch.elapsed_ms() < hold_up_ms) Forwarding::progress();
    }
    waited_for_newest = waited_for_newest || ticket == newest;
    Forwarding::wait(ticket);
  }
  int started = 0;
  comm::Ticket newest = 0;
  bool waited_for_newest = false;
  double hold_up_ms = 0;
};

BOOST_AUTO_TEST_CASE(parameters_leave_bucket_by_bucket_and_are_waited_for_when_they_are_used) {
  Watching watching(world());
  Run run(usual(true), Algorithm::sgd, watching);
  for (std::uint64_t step = 0; step < 4; ++step) run.step(step);
  run.replicas.step(toy_batch(4, run.replicas),
                    [&](Tape& tape, const ToyShard& shard, const ddp::Piece& piece) {
                      return run.model.loss(tape, shard, piece);
                    });
  watching.started = 0;
  watching.waited_for_newest = false;
  run.optimizer->step();
  const auto buckets = run.replicas.plan().buckets();
  BOOST_TEST(buckets.size() > 2u);
  BOOST_TEST(watching.started ==
             std::count_if(buckets.begin(), buckets.end(), [](const auto& b) { return b.bytes > 0; }));
  BOOST_TEST(!watching.waited_for_newest);
  run.model.params[0].settle();
  run.model.params[7].settle();
  BOOST_TEST(watching.waited_for_newest);
}

BOOST_AUTO_TEST_CASE(waiting_for_parameters_counts_as_exposed_communication) {
  Watching watching(world());
  Run run(usual(true), Algorithm::sgd, watching);
  for (std::uint64_t step = 0; step < 3; ++step) run.step(step);
  watching.hold_up_ms = 25;
  const ddp::StepResult result = run.replicas.step(
      toy_batch(3, run.replicas), [&](Tape& tape, const ToyShard& shard, const ddp::Piece& piece) {
        return run.model.loss(tape, shard, piece);
      });
  BOOST_TEST(result.exposed_comm_ms >= 25);
}

BOOST_AUTO_TEST_CASE(ranks_that_disagree_about_sharding_are_told) {
  if (world().size() == 1) return;
  Wide model;
  const auto backend = kernels::make_cpu_backend();
  const std::string text = same_error(ExitCode::usage, [&] {
    ddp::DataParallel(model.state(), world(), *backend, usual(world().rank() == 0));
  });
  BOOST_TEST(contains(text, "sharded_optimizer"));
}

BOOST_AUTO_TEST_CASE(a_steady_step_allocates_nothing) {
  Run run(usual(true));
  const ToyBatch batch = toy_batch(0, run.replicas);
  const auto loss_of = [&](Tape& tape, const ToyShard& shard, const ddp::Piece& piece) {
    return run.model.loss(tape, shard, piece);
  };
  std::optional<AllocationCount> count;
  std::size_t pool_bytes = 0;
  for (int step = 1; step <= 7; ++step) {
    if (step == 4) {
      pool_bytes = run.backend->reserved_bytes();
      count.emplace();
    }
    run.replicas.step(batch, loss_of);
    run.optimizer->step({.clip = 0.5});
  }
  for (const Param& param : run.model.params) param.settle();
  BOOST_TEST(count->made().own == 0);
  BOOST_TEST(run.backend->reserved_bytes() == pool_bytes);
}

}  // namespace
}  // namespace lockstep::test
