// Steps over samples that differ in size: on a device and on the CPU, recomputed, and never several shards at
// once.
#include <bit>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <vector>

#include "lockstep/autograd/recompute.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/adamw.h"
#include "support/mentions.h"
#include "train/on_a_device.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(ragged, *ranks(1, 2, 3))

/// Graphs of 0 to 9 nodes with 0 to 19 edges, and a number each.
class Graphs final : public data::Dataset {
 public:
  std::int64_t size() const override { return 50; }
  const std::vector<data::Field>& fields() const override { return fields_; }
  std::string name() const override { return "graphs"; }
  std::int64_t rows(std::size_t field, std::span<const std::int64_t> samples) const override {
    std::int64_t rows = 0;
    for (const std::int64_t sample : samples)
      rows += field == 0 ? nodes(sample) : field == 1 ? edges(sample) : 1;
    return rows;
  }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    check_read(samples, into);
    auto* node = into[0].data<float>();
    auto* edge = into[1].data<std::int64_t>();
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const Random random = of(samples[i]);
      for (std::int64_t n = 0; n < 3 * nodes(samples[i]); ++n)
        *node++ = random.normal(static_cast<std::uint64_t>(n));
      for (std::int64_t e = 0; e < 2 * edges(samples[i]); ++e)
        *edge++ =
            random.below(static_cast<std::uint64_t>(100 + e), static_cast<std::uint32_t>(nodes(samples[i])));
      into[2].data<float>()[i] = random.normal(200);
    }
  }

 private:
  static Random of(std::int64_t sample) {
    return Random({1, purpose_of("graphs"), static_cast<std::uint64_t>(sample), 0});
  }
  static std::int64_t nodes(std::int64_t sample) { return of(sample).below(300, 10); }
  static std::int64_t edges(std::int64_t sample) {
    return nodes(sample) == 0 ? 0 : of(sample).below(301, 20);
  }

  std::vector<data::Field> fields_{
      {.name = "nodes", .shape = {3}, .ragged = true},
      {.name = "edges", .dtype = DType::int64, .shape = {2}, .ragged = true, .index_of = "nodes"},
      {.name = "y", .shape = {1}}};
};

/// Sums of what edges say of their ends.
struct Network final : Model {
  explicit Network(bool recomputes_all)
      : Model(5), recomputes(recomputes_all), node(*this, "node", 3, 16), edge(*this, "edge", 16, 1) {}
  Var forward(Tape& tape, const Batch& batch) override {
    const auto body = [&] {
      const Tensor& edges = batch["edges"];
      const Var nodes = silu(node(tape.batch(batch["nodes"])));
      const Var ends =
          reshape(index_select(nodes, 0, edges.reshape({edges.numel()})), {edges.size(0), 2, 16});
      return segment_sum(edge(square(sum(ends, 1))), batch["edges_index"], batch.samples());
    };
    return recomputes ? recomputed(tape, body) : body();
  }
  bool recomputes;
  nn::Linear node, edge;
};

struct Trained {
  std::vector<double> losses;
  std::vector<std::uint32_t> bits;
  std::string refused;
};

Trained train(Place place, bool recomputes, int shards_at_once) {
  const Graphs graphs;
  Network network(recomputes);
  network.to(*place.backend);
  ddp::DataParallel replicas(network, place.sums(), *place.backend,
                             {.shards = 6, .shards_at_once = shards_at_once});
  optim::AdamW adamw(replicas, {});
  data::Loader loader(
      graphs, {.global_batch = 12, .shards = 6, .seed = 2, .backend = place.backend.get(), .threads = 2},
      world());
  Trained result;
  for (std::int64_t step = 0; step < 12; ++step) {
    result.losses.push_back(replicas
                                .step(loader.at(step),
                                      [&](Tape& tape, const Batch& shard) {
                                        return mse(network.forward(tape, shard), shard["y"]);
                                      })
                                .mean_loss());
    adamw.step();
  }
  for (const Param* const param : replicas.params()) {
    const Tensor here = kernels::on_cpu(param->value, place.backend.get());
    for (std::int64_t i = 0; i < here.numel(); ++i)
      result.bits.push_back(std::bit_cast<std::uint32_t>(here.data<float>()[i]));
  }
  result.refused = replicas.shards_at_once().refused;
  return result;
}

BOOST_AUTO_TEST_CASE(a_device_and_recomputation_have_the_bits_of_the_cpu) {
  const Trained wanted = train(on_cpu(), false, 0);
  BOOST_TEST(wanted.losses.back() < wanted.losses.front());
  for (const Trained& found : {train(on_fake_device(), false, 0), train(on_cpu(), true, 0)}) {
    BOOST_TEST(found.losses == wanted.losses, boost::test_tools::per_element());
    BOOST_TEST((found.bits == wanted.bits));
  }
}

BOOST_AUTO_TEST_CASE(shards_are_computed_one_after_another_also_if_more_are_asked_for) {
  const Trained alone = train(on_cpu(), false, 1), asked = train(on_cpu(), false, 2);
  BOOST_TEST((asked.bits == alone.bits));
  if (world().size() < 6) BOOST_TEST(contains(asked.refused, "samples of different sizes"));
}

BOOST_AUTO_TEST_CASE(a_batch_of_a_device_is_that_of_the_cpu_while_buffers_grow) {
  const Graphs graphs;
  Place device = on_fake_device();
  const data::LoaderOptions options{.global_batch = 6, .shards = 3, .seed = 4, .threads = 3};
  data::LoaderOptions there_options = options;
  there_options.backend = device.backend.get();
  data::Loader here(graphs, options, world()), there(graphs, there_options, world());
  for (const std::int64_t step : {0, 1, 2, 3, 4, 20, 5, 6, 40}) {
    const data::StepBatch &a = here.at(step), &b = there.at(step);
    BOOST_REQUIRE(a.shards.size() == b.shards.size());
    for (std::size_t shard = 0; shard < a.shards.size(); ++shard)
      for (const std::string_view field : a.shards[shard].names()) {
        const Tensor wanted = a.shards[shard][field],
                     found = kernels::on_cpu(b.shards[shard][field], device.backend.get());
        BOOST_TEST(found.shape() == wanted.shape());
        BOOST_TEST((std::memcmp(found.raw(), wanted.raw(), wanted.bytes()) == 0));
      }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
