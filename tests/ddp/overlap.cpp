// When buckets start: as soon as their last gradient exists, in plan order, and never later than backward.
#include <boost/test/unit_test.hpp>
#include <numeric>

#include "ddp/reducer.h"
#include "ddp/toy.h"
#include "support/forwarding.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(overlap, *ranks(1, 2, 3, 4))

/// Writes down which sums were started and what else was called.
class Recording final : public Forwarding {
 public:
  using Forwarding::Forwarding;

  std::vector<std::size_t> started;  // offsets, in order
  int gathers = 0, broadcasts = 0, polls = 0;

  comm::Work start_tree_sum(const comm::TreeSum& sum, const comm::ShardMap& map) override {
    started.push_back(sum.offset_bytes);
    return Forwarding::start_tree_sum(sum, map);
  }
  void progress() override {
    ++polls;
    Forwarding::progress();
  }
  bool done(comm::Work work) override {
    ++polls;
    return Forwarding::done(work);
  }
  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    ++gathers;
    Forwarding::all_gather(mine, bytes, all);
  }
  void broadcast(void* data, std::size_t bytes, int root) override {
    ++broadcasts;
    Forwarding::broadcast(data, bytes, root);
  }
};

/// The offsets of the buckets that travel, in plan order.
std::vector<std::size_t> in_plan_order(const ToyRun& run) {
  std::vector<std::size_t> offsets;
  for (const auto& bucket : run.replicas.plan().buckets()) {
    if (bucket.bytes > 0) offsets.push_back(bucket.offset_bytes);
  }
  return offsets;
}

constexpr std::size_t filled_buckets = 5;  // "nothing" has no elements, so nothing travels for it

BOOST_AUTO_TEST_CASE(from_the_first_step_on_every_bucket_but_the_last_is_in_flight_before_backward_ends) {
  for (const int shards : {4, 7}) {
    Recording transport(world());
    ToyRun run(tiny({.shards = shards}), {.transport = &transport});
    const int last = run.replicas.shard_map().block(world().rank()).end() - 1;
    for (std::uint64_t step = 0; step < 3; ++step) {
      transport.started.clear();
      run.step(step, watched([&](int shard) {
                 // in.weight has no gradient yet; in.bias has, but its bucket comes behind in the first plan
                 // or not.
                 if (shard == last) BOOST_TEST(transport.started.size() == filled_buckets - 1);
                 if (shard != last) BOOST_TEST(transport.started.empty());
               }));
      BOOST_TEST(transport.started.size() == filled_buckets);
    }
  }
}

BOOST_AUTO_TEST_CASE(buckets_start_in_plan_order) {
  Recording transport(world());
  ToyRun run(tiny({.shards = 5}), {.transport = &transport});
  for (std::uint64_t step = 0; step < 3; ++step) {
    transport.started.clear();
    const std::vector<std::size_t> wanted = in_plan_order(run);
    run.step(step);
    BOOST_TEST(transport.started == wanted, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(a_step_makes_one_collective_beside_its_buckets) {
  Recording transport(world());
  ToyRun run(tiny({.shards = 4}), {.transport = &transport});
  run.step(0);
  transport.gathers = transport.broadcasts = 0;
  transport.started.clear();
  run.step(1);
  BOOST_TEST(transport.gathers == 1);
  BOOST_TEST(transport.broadcasts == 0);
  BOOST_TEST(transport.started.size() == filled_buckets);
}

BOOST_AUTO_TEST_CASE(communication_is_polled_between_operations_while_something_is_in_flight) {
  Recording transport(world());
  ToyRun run(tiny({.shards = 4}), {.transport = &transport});
  int polls_at_end = 0;
  run.step(0, watched([&](int) { polls_at_end = transport.polls; }));
  BOOST_TEST(polls_at_end > 0);
}

BOOST_AUTO_TEST_CASE(a_rank_that_fails_starts_its_other_buckets_in_plan_order) {
  Recording transport(world());
  ToyRun run(tiny({.shards = 4}), {.transport = &transport});
  const std::vector<std::size_t> wanted = in_plan_order(run);
  same_error(ExitCode::data, [&] {
    run.step(0, watched([](int shard) {
               if (shard == 3) throw DataError("shard 3 is broken");
             }));
  });
  BOOST_TEST(transport.started == wanted, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_rank_without_shards_starts_all_its_buckets_at_once_and_receives_the_sum) {
  Net net;
  Recording communicator(world());
  const auto backend = kernels::make_cpu_backend();
  std::vector<Param*> params = net.state().params;
  ddp::Reducer reducer(params, {}, communicator, *backend, comm::ShardMap(1, world().size()),
                       {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb});
  for (std::uint64_t step = 0; step < 2; ++step) {
    communicator.started.clear();
    reducer.begin_step(step);
    BOOST_TEST(communicator.started.size() == (world().rank() == 0 ? 0 : filled_buckets));
    if (world().rank() == 0) {
      Tape tape(*backend);
      reducer.begin_group(0, 1);
      tape.begin({.sink = &reducer});
      const Loss loss = plain_loss(net, tape, toy_shard(step, 0));
      reducer.begin_backward(tape.used_params());
      backward(loss);
      tape.finish_backward();
      reducer.end_pass();
    }
    reducer.order_after();
    reducer.finish();
    const Gradients wanted = reference(step, 1);
    for (std::size_t p = 0; p < params.size(); ++p)
      BOOST_TEST(same_bits(elements(reducer.sum(static_cast<int>(p))), wanted[p]), params[p]->name);
    reducer.replan();
    for (std::size_t p = 0; p < params.size(); ++p)
      BOOST_TEST(same_bits(elements(reducer.sum(static_cast<int>(p))), wanted[p]), params[p]->name);
  }
}

BOOST_AUTO_TEST_CASE(a_plan_made_anew_keeps_what_every_accumulation_buffer_holds) {
  const auto self = comm::make_self_communicator();
  const auto backend = kernels::make_cpu_backend();
  const std::vector<ddp::BucketPlan::Gradient> leaves{{"a", {3}, DType::float32},
                                                      {"b", {40}, DType::float32},
                                                      {"c", {0}, DType::float32},
                                                      {"d", {17}, DType::float32}};
  ToyStatistic statistic;
  Statistic* const statistics[] = {&statistic};
  ddp::GradientBuffer buffer(*self, ddp::BucketPlan(leaves, std::vector{3, 2, 1, 0}, {}), statistics, 3,
                             *backend);
  const auto fill = [&](int gradient, int accumulator) {
    const Tensor memory = buffer.gradient(gradient, accumulator);
    std::iota(memory.data<float>(), memory.data<float>() + memory.numel(),
              static_cast<float>(1000 * gradient + 100 * accumulator));
  };
  for (int accumulator = 0; accumulator < 3; ++accumulator) {
    for (int g = 0; g < 4; ++g) fill(g, accumulator);
    buffer.statistic(0, accumulator).data<double>()[2] = accumulator;
  }
  buffer.adopt(ddp::BucketPlan(leaves, std::vector{1, 0, 3, 2}, {.first_bytes = 1, .other_bytes = 1}));
  for (int accumulator = 0; accumulator < 3; ++accumulator) {
    for (int g = 0; g < 4; ++g) {
      const Tensor memory = buffer.gradient(g, accumulator);
      for (std::int64_t i = 0; i < memory.numel(); ++i)
        BOOST_TEST(memory.data<float>()[i] == static_cast<float>(1000 * g + 100 * accumulator + i));
    }
    BOOST_TEST(buffer.statistic(0, accumulator).data<double>()[2] == accumulator);
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
