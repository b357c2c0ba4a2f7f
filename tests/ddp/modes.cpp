// The ways in which gradients travel: the same bits, and the simple ones start nothing before backward is
// over.
#include <boost/test/unit_test.hpp>
#include <memory>

#include "ddp/training.h"
#include "lockstep/optim/adamw.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(modes, *ranks(1, 2, 3, 4))

constexpr ddp::Mode all_modes[] = {ddp::Mode::overlapped, ddp::Mode::flat, ddp::Mode::per_parameter};

/// Writes down the sums in flight, and which are waited for.
class Watching final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  struct Sum {
    comm::Work work;
    std::int64_t elements;
    DType dtype;
  };
  std::vector<Sum> sums;
  std::vector<comm::Work> waits;
  bool one_at_a_time = true;  ///< each sum was waited for before the next was started

  comm::Work start_tree_sum(const comm::TreeSum& sum, const comm::ShardMap& map) override {
    if (!sums.empty() && std::find(waits.begin(), waits.end(), sums.back().work) == waits.end())
      one_at_a_time = false;
    sums.push_back({Forwarding::start_tree_sum(sum, map), sum.count, sum.dtype});
    return sums.back().work;
  }
  void order_after(comm::Work work) override {
    waits.push_back(work);
    Forwarding::order_after(work);
  }
  void forget() {
    sums.clear();
    waits.clear();
    one_at_a_time = true;
  }
};

struct Run {
  explicit Run(ddp::Mode mode, int shards, ddp::Options options = {})
      : communicator(world()), replicas(net.state(), communicator, *backend, [&] {
          options.bucket_mb = options.first_bucket_mb = tiny_mb;
          options.shards = shards;
          options.mode = mode;
          return options;
        }()) {}
  /// at_the_end is called in the backward of the first operation of a shard, which is the last to run.
  template <class AtTheEnd>
  ddp::StepResult step(std::uint64_t step, const AtTheEnd& at_the_end) {
    communicator.forget();
    return replicas.step(toy_batch(step, replicas), [&](Tape& tape, const ToyShard& shard) {
      const Var w = tape.parameter(net["in.weight"]);
      const Var watched =
          tape.record(net["in.weight"].value, {&w}, [&at_the_end, w](Tape& t, const Tensor& dy) {
            t.add_gradient(w, dy);
            at_the_end();
          });
      Var h = relu(linear(tape.constant(shard.x), watched, tape.parameter(net["in.bias"])));
      h = relu(linear(h, tape.parameter(net["tied.weight"])));
      return mse(linear(net.with_nothing(tape, h), tape.parameter(net["out.weight"]),
                        tape.parameter(net["out.bias"])),
                 shard.y);
    });
  }
  Net net;
  Watching communicator;
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas;
};

BOOST_AUTO_TEST_CASE(every_mode_gives_the_same_bits) {
  for (int shards = world().size(); shards <= world().size() + 3; ++shards) {
    for (const int pieces : {1, 2}) {
      for (const ddp::Mode mode : all_modes) {
        Net net;
        const auto backend = kernels::make_cpu_backend();
        ddp::DataParallel replicas(net.state(), world(), *backend,
                                   {.bucket_mb = 0.0002,
                                    .first_bucket_mb = tiny_mb,
                                    .shards = shards,
                                    .micro_batches = pieces,
                                    .mode = mode});
        for (std::uint64_t step = 0; step < 3; ++step) {
          replicas.step(toy_batch(step, replicas),
                        [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
                          return net.loss(tape, piece.rows(shard.x), piece.rows(shard.y));
                        });
          check_gradients(net, reference(step, shards, pieces));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_simple_modes_start_nothing_before_the_last_backward_is_over) {
  for (const ddp::Mode mode : {ddp::Mode::flat, ddp::Mode::per_parameter}) {
    Run run(mode, 2 * world().size());
    for (std::uint64_t step = 0; step < 3; ++step) {
      int ends = 0;
      run.step(step, [&] {
        ++ends;
        BOOST_TEST(run.communicator.sums.empty());
      });
      BOOST_TEST(ends == 2);
      BOOST_TEST(!run.communicator.sums.empty());
    }
  }
}

BOOST_AUTO_TEST_CASE(flat_is_one_sum_over_all_gradients) {
  Run run(ddp::Mode::flat, world().size());
  for (std::uint64_t step = 0; step < 3; ++step) {
    run.step(step, [] {});
    BOOST_TEST(run.replicas.plan().buckets().size() == 1u);
    BOOST_TEST_REQUIRE(run.communicator.sums.size() == 1u);
    BOOST_TEST(static_cast<std::size_t>(run.communicator.sums[0].elements) * 4 ==
               run.replicas.plan().bytes());
  }
}

BOOST_AUTO_TEST_CASE(per_parameter_is_one_sum_a_parameter_one_after_another) {
  Run run(ddp::Mode::per_parameter, world().size());
  for (std::uint64_t step = 0; step < 3; ++step) {
    run.step(step, [] {});
    BOOST_TEST_REQUIRE(run.communicator.sums.size() == 5u);  // "nothing" has no elements
    for (std::size_t i = 0; i < 5; ++i) {
      const auto& bucket = run.replicas.plan().buckets()[i];
      std::int64_t elements = 0, filled = 0;
      for (const int g : bucket.gradients) {
        const auto n = run.net.params[static_cast<std::size_t>(g)].value.numel();
        elements += n;
        filled += n > 0;
      }
      BOOST_TEST(filled == 1);
      BOOST_TEST(elements <= bucket.elements());
    }
    BOOST_TEST(run.communicator.one_at_a_time);
  }
}

BOOST_AUTO_TEST_CASE(every_mode_trains_with_parameters_that_some_leave_out) {
  const int shards = world().size() + 1;
  const LossOf sometimes_deep = [](Net& net, Tape& tape, const ToyShard& shard) {
    if (shard.index == 1) return plain_loss(net, tape, shard);
    const Var h =
        relu(linear(tape.constant(shard.x), tape.parameter(net.params[0]), tape.parameter(net.params[1])));
    return mse(linear(h, tape.parameter(net.params[3]), tape.parameter(net.params[4])), shard.y);
  };
  for (const ddp::Mode mode : all_modes) {
    Run run(mode, shards, {.unused = ddp::Unused::allow});
    for (std::uint64_t step = 0; step < 3; ++step) {
      run.replicas.step(toy_batch(step, run.replicas), [&](Tape& tape, const ToyShard& shard) {
        return sometimes_deep(run.net, tape, shard);
      });
      check_gradients(run.net, reference(step, shards, 1, sometimes_deep));
    }
  }
}

BOOST_AUTO_TEST_CASE(in_every_mode_an_error_of_one_rank_reaches_all_and_the_next_step_works) {
  const int shards = world().size() + 1;
  for (const ddp::Mode mode : all_modes) {
    Run run(mode, shards);
    const auto step = [&](std::uint64_t number, int bad) {
      run.replicas.step(toy_batch(number, run.replicas), [&](Tape& tape, const ToyShard& shard) {
        if (shard.index == bad) throw DataError("sample {} cannot be read", bad);
        return plain_loss(run.net, tape, shard);
      });
    };
    for (int bad = 0; bad < shards; ++bad) {
      const std::string text =
          same_error(ExitCode::data, [&] { step(static_cast<std::uint64_t>(bad), bad); });
      BOOST_TEST(contains(text, "sample " + std::to_string(bad) + " cannot be read"));
    }
    step(20, -1);
    check_gradients(run.net, reference(20, shards));
  }
}

BOOST_AUTO_TEST_CASE(another_mode_on_one_rank_is_told) {
  if (world().size() == 1) return;
  Net net;
  const auto backend = kernels::make_cpu_backend();
  const bool odd = world().rank() + 1 == world().size();
  const std::string text = same_error(ExitCode::usage, [&] {
    ddp::DataParallel(net.state(), world(), *backend,
                      {.mode = odd ? ddp::Mode::flat : ddp::Mode::overlapped});
  });
  BOOST_TEST(contains(text, "option mode has value overlapped on rank 0 but flat on rank"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
