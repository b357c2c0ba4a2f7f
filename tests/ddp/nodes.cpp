// Steps on made-up layouts of ranks on machines: the same bits wherever ranks run, and 16 bits on the wire
// between machines round what travels, once, and nothing else.
#include <mpi.h>

#include <boost/test/unit_test.hpp>
#include <memory>

#include "comm/layouts.h"
#include "comm/mpi_calls.h"
#include "ddp/training.h"
#include "lockstep/tensor/dtype.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(nodes, *ranks(1, 2, 3, 4))

float rounded(DType wire, float value) {
  return wire == DType::bfloat16 ? from_bfloat16_bits(bfloat16_bits(value))
                                 : from_float16_bits(float16_bits(value));
}

Gradients rounded(DType wire, Gradients gradients) {
  for (auto& gradient : gradients) {
    for (float& value : gradient) value = rounded(wire, value);
  }
  return gradients;
}

/// The sum of a sub-tree: float32 additions, rounded where it is the largest one that is on one machine.
struct Between {
  DType wire;
  const comm::ShardMap& map;
  const comm::Topology& topology;
  std::uint64_t step;

  int node(int shard) const { return topology.node_of_rank[static_cast<std::size_t>(map.owner(shard))]; }
  bool on_one_node(comm::ShardRange range) const {
    for (int shard = range.first; shard < range.end(); ++shard) {
      if (node(shard) != node(range.first)) return false;
    }
    return true;
  }
  Gradients within(comm::ShardRange range) const {
    Net net;
    const auto backend = kernels::make_cpu_backend();
    return comm::fold_tree(
        range,
        [&](int shard) { return shard_gradients(net, *backend, toy_shard(step, shard), 1, plain_loss); },
        add);
  }
  Gradients sum(comm::ShardRange range) const {
    if (on_one_node(range)) return rounded(wire, within(range));
    const int left = comm::left_leaves(range.count);
    return add(sum({range.first, left}), sum({range.first + left, range.count - left}));
  }
  Gradients result() const {
    const comm::ShardRange all{0, map.shards()};
    return topology.nodes() == 1 ? within(all) : rounded(wire, sum(all));
  }
};

void step_on(ddp::DataParallel& replicas, Net& net, std::uint64_t step) {
  replicas.step(toy_batch(step, replicas),
                [&](Tape& tape, const ToyShard& shard) { return plain_loss(net, tape, shard); });
}

BOOST_AUTO_TEST_CASE(gradients_have_the_same_bits_on_any_layout_in_any_mode) {
  for (const auto& layout : layouts(world().size())) {
    BOOST_TEST_CONTEXT(text_of(layout)) {
      const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout, {.chunk_bytes = 64});
      const int shards = 2 * nodes->size() + 1;
      for (const ddp::Mode mode : all_modes) {
        Net net;
        const auto backend = kernels::make_cpu_backend();
        ddp::DataParallel replicas(
            net.state(), *nodes, *backend,
            {.bucket_mb = 0.0002, .first_bucket_mb = tiny_mb, .shards = shards, .mode = mode});
        for (std::uint64_t step = 0; step < 3; ++step) {
          step_on(replicas, net, step);
          check_gradients(net, reference(step, shards));
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(sixteen_bits_on_the_wire_round_what_travels_between_machines_once) {
  for (const auto& layout : layouts(world().size())) {
    BOOST_TEST_CONTEXT(text_of(layout)) {
      const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout);
      const int shards = nodes->size() + 1;
      for (const DType wire : {DType::bfloat16, DType::float16}) {
        Net net;
        const auto backend = kernels::make_cpu_backend();
        ddp::DataParallel replicas(
            net.state(), *nodes, *backend,
            {.bucket_mb = tiny_mb, .first_bucket_mb = tiny_mb, .shards = shards, .comm_dtype = wire});
        for (std::uint64_t step = 0; step < 2; ++step) {
          step_on(replicas, net, step);
          const Between between{wire, replicas.shard_map(), nodes->topology(), step};
          check_gradients(net, between.result());
        }
        // Rounded, so the test above is not about nothing.
        BOOST_TEST(same_bits(elements(net.params[0].gradient), reference(1, shards)[0]) ==
                   (nodes->topology().nodes() == 1));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_sum_that_float16_cannot_hold_is_an_error_naming_the_parameter_on_every_rank) {
  for (const auto& layout : layouts(world().size())) {
    const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout);
    for (const bool sharded : {false, true}) {
      Net net;
      const auto backend = kernels::make_cpu_backend();
      ddp::DataParallel replicas(net.state(), *nodes, *backend,
                                 {.comm_dtype = DType::float16, .sharded_optimizer = sharded});
      BOOST_TEST(nodes->rounds(DType::float16) == (nodes->topology().nodes() > 1));
      const auto large_step = [&] {
        replicas.step(toy_batch(0, replicas), [&](Tape& tape, const ToyShard& shard) {
          Loss loss = plain_loss(net, tape, shard);
          loss.sum = scale(loss.sum, 1e6F);
          return loss;
        });
      };
      if (nodes->topology().nodes() == 1) {
        large_step();
      } else {
        BOOST_TEST(contains(same_error(ExitCode::training, large_step), "float16"));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(statistics_and_the_loss_are_never_rounded) {
  class Thirds final : public Statistic {
   public:
    const std::string& name() const override { return name_; }
    std::int64_t elements() const override { return 1; }
    void apply(kernels::Backend&, const Tensor& sum) override { total = *sum.data<double>(); }
    double total = 0;

   private:
    std::string name_ = "thirds";
  };
  for (const auto& layout : layouts(world().size())) {
    BOOST_TEST_CONTEXT(text_of(layout)) {
      const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout);
      const int shards = nodes->size();
      Net net;
      Thirds thirds;
      ModelState state = net.state();
      state.statistics = {&thirds};
      const auto backend = kernels::make_cpu_backend();
      ddp::DataParallel replicas(state, *nodes, *backend, {.shards = shards, .comm_dtype = DType::bfloat16});
      const ddp::StepResult result =
          replicas.step(toy_batch(0, replicas), [&](Tape& tape, const ToyShard& shard) {
            const GradientView view = tape.pass().sink->gradient_view(thirds);
            view.memory.data<double>()[0] = (shard.index + 1) / 3.0;
            tape.pass().sink->contributed(thirds);
            return plain_loss(net, tape, shard);
          });
      const double wanted = comm::fold_tree(
          {0, shards}, [](int shard) { return (shard + 1) / 3.0; }, [](double a, double b) { return a + b; });
      BOOST_TEST(thirds.total == wanted);
      Net other;
      const double loss = comm::fold_tree(
          {0, shards},
          [&](int shard) {
            Tape tape(*backend);
            tape.begin({.record = false});
            const ToyShard samples = toy_shard(0, shard);
            return plain_loss(other, tape, samples).read().sum;
          },
          [](double a, double b) { return a + b; });
      BOOST_TEST(result.loss_sum == loss);
    }
  }
}

BOOST_AUTO_TEST_CASE(other_element_types_on_the_wire_are_refused) {
  Net net;
  const auto backend = kernels::make_cpu_backend();
  const std::string text = same_error(ExitCode::usage, [&] {
    ddp::DataParallel(net.state(), world(), *backend, {.comm_dtype = DType::int64});
  });
  BOOST_TEST(contains(text, "int64"));
  BOOST_TEST(contains(text, "fp32, bf16, fp16"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
