// Samples that differ in size: files with offsets, batches of joined rows, views, and what is refused.
#include "data/ragged.h"

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>

#include "data/files.h"
#include "data/finite.h"
#include "lockstep/base/error.h"
#include "lockstep/data/arrays.h"
#include "lockstep/data/loader.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(ragged)

using Offsets = std::vector<std::int64_t>;

/// How graphs.h5 differs from a good file.
struct GraphFile {
  Offsets nodes{0, 3, 3, 5, 6}, edges{0, 2, 2, 2, 3};
  std::vector<std::int64_t> ends{0, 2, 1, 1, 0, 0};  // [3, 2]
  std::string index_of = "nodes";
  DType offset_type = DType::int64;
  std::string more{};  // the name of one more array, [4]
};

/// 4 graphs with 3, 0, 2 and 1 nodes, node i [i, 10 i], and 2, 0, 0 and 1 edges; y is the number of the
/// graph.
std::string make_graphs(const TemporaryFolder& folder, const GraphFile& like = {},
                        const std::string& name = "graphs.h5") {
  hdf5::File file = hdf5::File::create(folder.file(name));
  std::vector<float> nodes;
  for (int i = 0; i < 6; ++i)
    nodes.insert(nodes.end(), {static_cast<float>(i), 10.0f * static_cast<float>(i)});
  file.create_dataset("nodes", DType::float32, {6, 2}).write(std::span<const float>(nodes));
  const auto write_offsets = [&](const std::string& of, const Offsets& offsets) {
    hdf5::Dataset stored = file.create_dataset(of, like.offset_type, {std::ssize(offsets)});
    if (like.offset_type == DType::int64)
      stored.write(std::span<const std::int64_t>(offsets));
    else
      stored.write(std::span<const double>(std::vector<double>(offsets.begin(), offsets.end())));
  };
  write_offsets("nodes_offsets", like.nodes);
  write_offsets("edges_offsets", like.edges);
  const std::int64_t edges = std::ssize(like.ends) / 2;
  hdf5::Dataset ends = file.create_dataset("edges", DType::int64, {edges, 2});
  if (edges > 0) ends.write(std::span<const std::int64_t>(like.ends));
  if (!like.index_of.empty()) ends.set_attribute("index_of", like.index_of);
  const std::vector<float> y{0, 1, 2, 3};
  file.create_dataset("y", DType::float32, {4}).write(std::span<const float>(y));
  if (!like.more.empty())
    file.create_dataset(like.more, DType::float32, {4}).write(std::span<const float>(y));
  file.close();
  return folder.file(name);
}

std::vector<float> floats(const Tensor& tensor) { return values_of<float>(tensor); }
Offsets integers(const Tensor& tensor) { return values_of<std::int64_t>(tensor); }

BOOST_AUTO_TEST_CASE(a_batch_has_the_rows_of_all_samples_the_sample_of_each_and_indices_into_them) {
  const TemporaryFolder folder;
  const data::Arrays graphs(make_graphs(folder));
  BOOST_TEST(graphs.size() == 4);
  data::EvalBatches batches(graphs, 4, 0, 1);
  const Batch& batch = batches.read(0);
  BOOST_TEST(batch.is_ragged());
  BOOST_TEST(batch.samples() == 4);
  BOOST_TEST(floats(batch["nodes"]) == (std::vector<float>{0, 0, 1, 10, 2, 20, 3, 30, 4, 40, 5, 50}));
  BOOST_TEST(integers(batch["nodes_index"]) == (Offsets{0, 0, 0, 2, 2, 3}));
  BOOST_TEST((batch["edges"].shape() == Shape{3, 2}));
  BOOST_TEST(integers(batch["edges"]) == (Offsets{0, 2, 1, 1, 5, 5}));
  BOOST_TEST(integers(batch["edges_index"]) == (Offsets{0, 0, 3}));
  BOOST_TEST(floats(batch["y"]) == (std::vector<float>{0, 1, 2, 3}));
}

BOOST_AUTO_TEST_CASE(a_batch_may_have_no_rows_at_all) {
  const TemporaryFolder folder;
  const data::Arrays graphs(make_graphs(folder, {.edges = {0, 0, 0, 0, 0}, .ends = {}}));
  data::EvalBatches batches(graphs, 2, 0, 1);
  const Batch& batch = batches.read(0);
  BOOST_TEST((batch["edges"].shape() == Shape{0, 2}));
  BOOST_TEST((batch["edges_index"].shape() == Shape{0}));
  BOOST_TEST(batch.samples() == 2);
  BOOST_TEST((batches.read(1)["nodes"].shape() == Shape{3, 2}));
}

BOOST_AUTO_TEST_CASE(views_read_the_rows_of_their_samples) {
  const TemporaryFolder folder;
  const std::string path = make_graphs(folder);
  const data::Arrays twice({path, path}), again(path, {.memory_limit_bytes = 0});
  const data::Mixture both({{&twice}, {&again}}, false);
  const data::Subset some(both, 2, 9);
  const Offsets samples{5, 0, 3, 8, 1};  // of `both`: 7, 2, 5, 10, 3
  const std::vector<Tensor> tensors = data::tensors_for(some, samples);
  some.read(samples, tensors);
  BOOST_TEST(floats(tensors[1]) == (std::vector<float>{5, 50, 3, 30, 4, 40, 3, 30, 4, 40, 5, 50}));
  BOOST_TEST(integers(tensors[0]) == (Offsets{0, 0, 0, 0}));  // edges of 7 and 3, each in its own graph
  BOOST_TEST(some.rows(1, samples) == 6);
}

BOOST_AUTO_TEST_CASE(training_gets_the_same_batches_from_any_number_of_threads_and_from_views) {
  const TemporaryFolder folder;
  const data::Arrays graphs(make_graphs(folder)),
      on_disk(folder.file("graphs.h5"), {.memory_limit_bytes = 0});
  const data::Subset all(graphs, 0, 4);
  const data::Dataset* const one[] = {&graphs, &on_disk, &all};
  std::vector<std::string> seen;
  for (const data::Dataset* const dataset : one)
    for (const int threads : {1, 3}) {
      data::Loader loader(*dataset, {.global_batch = 6, .shards = 2, .seed = 3, .threads = threads}, 0, 1);
      std::string text;
      for (const std::int64_t step : {0, 1, 2, 7, 3, 4})  // also after a jump
        for (const Batch& shard : loader.at(step)) {
          BOOST_TEST(shard.samples() == 3);
          for (const char* const field : {"nodes", "y"})
            text += fmt::format("{} ", floats(shard[field]).size());
          for (const float value : floats(shard["nodes"])) text += fmt::format("{} ", value);
          for (const char* const field : {"edges", "edges_index", "nodes_index"})
            for (const std::int64_t value : integers(shard[field])) text += fmt::format("{} ", value);
        }
      seen.push_back(text);
    }
  for (const std::string& text : seen) BOOST_TEST(text == seen.front());
}

BOOST_AUTO_TEST_CASE(indices_point_at_the_nodes_of_their_own_graph_in_drawn_files) {
  const char* const given = std::getenv("LOCKSTEP_TEST_SEED");
  const std::uint64_t seed = given ? std::strtoull(given, nullptr, 10) : 1;
  BOOST_TEST_MESSAGE("LOCKSTEP_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const auto draw = [&](std::int64_t below) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(below));
  };
  const TemporaryFolder folder;
  // Node values say which graph they are of; an edge joins nodes of one graph.
  constexpr std::int64_t graphs = 40;
  Offsets nodes{0}, edges{0}, ends;
  std::vector<float> values;
  for (std::int64_t graph = 0; graph < graphs; ++graph) {
    const std::int64_t own = draw(5), joined = own == 0 ? 0 : draw(7);
    nodes.push_back(nodes.back() + own);
    edges.push_back(edges.back() + joined);
    for (std::int64_t i = 0; i < own; ++i) values.push_back(static_cast<float>(graph));
    for (std::int64_t i = 0; i < joined; ++i) ends.push_back(draw(own));
  }
  hdf5::File file = hdf5::File::create(folder.file("drawn.h5"));
  file.create_dataset("nodes", DType::float32, {std::ssize(values)}).write(std::span<const float>(values));
  file.create_dataset("nodes_offsets", DType::int64, {graphs + 1})
      .write(std::span<const std::int64_t>(nodes));
  hdf5::Dataset from = file.create_dataset("from", DType::int64, {std::ssize(ends)});
  from.write(std::span<const std::int64_t>(ends));
  from.set_attribute("index_of", std::string("nodes"));
  file.create_dataset("from_offsets", DType::int64, {graphs + 1}).write(std::span<const std::int64_t>(edges));
  file.close();
  const data::Arrays data(folder.file("drawn.h5"));
  data::Loader loader(data, {.global_batch = 12, .shards = 3, .seed = seed, .threads = 2}, 0, 1);
  for (std::int64_t step = 0; step < 30; ++step)
    for (const Batch& shard : loader.at(step)) {
      std::vector<std::int64_t> samples(4);
      loader.stream().shard_samples(step, shard.index, samples);
      for (std::int64_t i = 0; i < shard["from"].numel(); ++i) {
        const std::int64_t sample = shard["from_index"].data<std::int64_t>()[i],
                           node = shard["from"].data<std::int64_t>()[i];
        BOOST_REQUIRE(node < shard["nodes"].numel());
        BOOST_TEST(shard["nodes_index"].data<std::int64_t>()[node] == sample);
        BOOST_TEST(shard["nodes"].data<float>()[node] ==
                   static_cast<float>(samples[static_cast<std::size_t>(sample)]));
      }
    }
}

BOOST_AUTO_TEST_CASE(bad_offsets_and_indices_are_refused_with_file_array_and_place) {
  const auto refused = [&](const GraphFile& like, const std::vector<std::string>& texts) {
    const TemporaryFolder folder;
    const std::string path = make_graphs(folder, like);
    BOOST_CHECK_EXCEPTION(data::with_indices(data::Arrays(path)), DataError, mentions(texts));
  };
  refused({.nodes = {0, 3, 2, 5, 6}}, {"graphs.h5: /nodes_offsets falls from 3 to 2 at sample 1"});
  refused({.nodes = {1, 3, 3, 5, 6}}, {"/nodes_offsets begins with 1, not 0"});
  refused({.nodes = {0, 3, 3, 5, 7}}, {"/nodes_offsets ends at 7, but /nodes has 6 rows"});
  refused({.nodes = {0, 3, 3, 5}}, {"/nodes_offsets ends at 5"});
  refused({.nodes = {0, 3, 6}}, {"/edges has 4 samples by its offsets and /nodes has 2 samples"});
  refused({.offset_type = DType::float64},
          {"_offsets is float64 [5], but the offsets of /", "are integers [samples + 1]"});
  refused({.index_of = "atoms"}, {"/edges has the attribute index_of for /atoms", "no field"});
  refused({.index_of = "y"}, {"/edges has the attribute index_of for /y", "/y_offsets"});
  refused({.more = "nodes_index"}, {"graphs.h5", "nodes_index", "ragged field nodes"});
  const TemporaryFolder folder;
  const data::Arrays wrong(make_graphs(folder, {.ends = {0, 2, 1, 3, 0, 0}}));
  data::EvalBatches batches(wrong, 4, 0, 1);
  BOOST_CHECK_EXCEPTION(batches.read(0), DataError,
                        mentions("graphs.h5: sample 0: field edges holds 3, but its nodes has 3 rows"));
  data::Loader loader(wrong, {.global_batch = 4, .shards = 1}, 0, 1);
  BOOST_CHECK_EXCEPTION(loader.at(0), DataError, mentions("sample 0: field edges holds 3"));
}

BOOST_AUTO_TEST_CASE(an_array_with_the_name_of_offsets_and_as_many_rows_is_a_field_as_it_was) {
  const TemporaryFolder folder;
  hdf5::File file = hdf5::File::create(folder.file("old.h5"));
  const std::vector<float> x{1, 2, 3};
  const std::vector<std::int64_t> shifts{5, 4, 5};
  file.create_dataset("x", DType::float32, {3}).write(std::span<const float>(x));
  file.create_dataset("x_offsets", DType::int64, {3}).write(std::span<const std::int64_t>(shifts));
  file.close();
  const data::Arrays old(folder.file("old.h5"));
  BOOST_TEST(old.fields().size() == 2);
  BOOST_TEST(old.size() == 3);
  const data::Arrays graphs(make_graphs(folder), {.fields = {"edges_offsets", "nodes_offsets"}});
  BOOST_TEST(graphs.size() == 5);  // named, they are arrays like others
}

BOOST_AUTO_TEST_CASE(fields_of_as_many_rows_do_not_mind_an_array_that_has_only_the_name_of_offsets) {
  const TemporaryFolder folder;
  hdf5::File file = hdf5::File::create(folder.file("old.h5"));
  const std::vector<float> x{1, 2, 3, 4};
  for (const char* const name : {"x", "y", "z"})
    file.create_dataset(name, DType::float32, {4}).write(std::span<const float>(x));
  file.create_dataset("x_offsets", DType::float32, {2}).write(std::span<const float>(x.data(), 2));
  file.create_dataset("y_offsets", DType::int64, {2}).write(std::span<const std::int64_t>(Offsets{3, 1}));
  file.create_dataset("z_offsets", DType::int64, {3}).write(std::span<const std::int64_t>(Offsets{0, 2, 4}));
  file.close();
  const auto open = [&](const std::string& field, const std::string& other) {
    return data::Arrays(folder.file("old.h5"), {.fields = {field, other}});
  };
  for (const auto& [one, other] :
       std::vector<std::pair<std::string, std::string>>{{"x", "y"}, {"x", "z"}, {"y", "z"}}) {
    const data::Arrays old = open(one, other);
    BOOST_TEST(old.size() == 4);
    BOOST_TEST(!data::is_ragged(old));
    BOOST_TEST(old.notes().size() == 2);
  }
  BOOST_TEST(
      contains(open("x", "z").notes()[1],
               "old.h5: /z_offsets is not read: by it /z would have 2 samples, but all fields have 4 rows"));
}

BOOST_AUTO_TEST_CASE(numbers_of_rows_are_no_numbers_of_other_rows) {
  const TemporaryFolder folder;
  const data::Arrays graphs(make_graphs(folder)),
      numbers(make_graphs(folder, {.index_of = ""}, "numbers.h5"));
  data::FieldMeaning learned = graphs.meaning("edges");
  BOOST_TEST(learned.index_of.value.value() == "nodes");
  BOOST_CHECK_EXCEPTION(
      learned.merge("edges", numbers.meaning("edges")), DataError,
      mentions("numbers.h5: edges has the attribute index_of = \"\"", "graphs.h5 it has \"nodes\""));
  learned.index_of.value.reset();  // of a checkpoint of an earlier version
  BOOST_CHECK_NO_THROW(learned.merge("edges", numbers.meaning("edges")));
  hdf5::File file = hdf5::File::create(folder.file("number.h5"));
  file.create_dataset("x", DType::int64, {1}).set_attribute("index_of", std::int64_t{3});
  file.close();
  BOOST_CHECK_EXCEPTION(data::Arrays(folder.file("number.h5")), DataError,
                        mentions("number.h5", "index_of of /x is no text"));
}

BOOST_AUTO_TEST_CASE(no_step_of_a_ragged_field_is_padding) {
  const TemporaryFolder folder;
  const data::Arrays graphs(data::Request{.files = {make_graphs(folder, {.more = "lengths"})},
                                          .fields = {"x:nodes", "lengths:y", "y_lengths:y", "y:edges"},
                                          .takes_series = true,
                                          .y_lengths = "y_lengths"});
  for (const data::Field& field : graphs.fields()) BOOST_TEST(field.padded_by == "");
}

BOOST_AUTO_TEST_CASE(a_shard_of_too_many_rows_is_refused_with_all_that_one_needs_to_know) {
  const TemporaryFolder folder;
  const data::Arrays graphs(make_graphs(folder));
  data::Loader loader(graphs, {.global_batch = 4, .shards = 1, .shuffle = false, .max_rows = 5}, 0, 1);
  for (int i = 0; i < 2; ++i)  // asking again tries again
    BOOST_CHECK_EXCEPTION(
        loader.at(0), DataError,
        mentions("data.max_rows = 5: the 4 samples of shard 0 of step 1 have 6 rows of nodes",
                 "sample 0 has 3"));
  data::Loader enough(graphs, {.global_batch = 4, .shards = 1, .shuffle = false, .max_rows = 6}, 0, 1);
  BOOST_TEST(enough.at(0).shards[0]["nodes"].size(0) == 6);
}

BOOST_AUTO_TEST_CASE(chunks_of_an_evaluation_have_a_bounded_number_of_rows_or_one_sample) {
  const TemporaryFolder folder;
  hdf5::File file = hdf5::File::create(folder.file("large.h5"));
  const Offsets offsets{0, 3000, 4000, 4100, 10000, 10000, 10010};
  file.create_dataset("x", DType::float32, {10010}).write(std::span<const float>(std::vector<float>(10010)));
  file.create_dataset("x_offsets", DType::int64, {7}).write(std::span<const std::int64_t>(offsets));
  file.close();
  const data::Arrays data(folder.file("large.h5"));
  data::EvalBatches batches(data, 64, 0, 1);
  Offsets begins;
  for (int chunk = 0; chunk <= batches.chunks(); ++chunk) begins.push_back(batches.first_sample(chunk));
  BOOST_TEST(begins == (Offsets{0, 2, 3, 4, 6}));
  BOOST_TEST(batches.read(batches.chunks() - 2)["x"].size(0) == 5900);
}

BOOST_AUTO_TEST_CASE(a_field_is_normalised_over_its_rows) {
  const TemporaryFolder folder;
  data::Arrays graphs(make_graphs(folder));
  graphs.normalize("nodes", std::nullopt);
  const auto alone = comm::make_self_communicator();
  const data::Normalization by = data::normalization_of(graphs, "nodes", *alone);
  BOOST_TEST(by.mean == (std::vector<double>{2.5, 25}));
  BOOST_CHECK_CLOSE(by.deviation[0], std::sqrt(35.0 / 12), 1e-9);
  graphs.normalize("nodes", by);
  data::EvalBatches batches(graphs, 4, 0, 1);
  BOOST_CHECK_SMALL(floats(batches.read(0)["nodes"])[5] - floats(batches.read(0)["nodes"])[4], 1e-6f);
  BOOST_CHECK_EXCEPTION(graphs.normalize("edges", by), UsageError, mentions("/edges", "index_of = nodes"));
  auto own = std::make_unique<data::Arrays>(folder.file("graphs.h5"));
  data::Normalized view(std::move(own));
  view.normalize("nodes", by);
  data::EvalBatches same(view, 4, 0, 1);
  BOOST_TEST(floats(same.read(0)["nodes"]) == floats(batches.read(0)["nodes"]));
}

BOOST_AUTO_TEST_CASE(a_value_that_is_not_finite_is_reported_with_its_sample) {
  const TemporaryFolder folder;
  make_graphs(folder);
  {
    hdf5::File file = hdf5::File::create(folder.file("nan.h5"));
    std::vector<float> x(6, 1);
    x[3] = std::numeric_limits<float>::quiet_NaN();
    file.create_dataset("x", DType::float32, {6}).write(std::span<const float>(x));
    file.create_dataset("x_offsets", DType::int64, {5})
        .write(std::span<const std::int64_t>(Offsets{0, 3, 3, 5, 6}));
    file.close();
  }
  const data::Arrays data(folder.file("nan.h5"));
  const auto alone = comm::make_self_communicator();
  const std::string found = data::first_not_finite(data, 1 << 20, *alone);
  BOOST_TEST(contains(found, "nan.h5: sample 2 of field x holds nan"));
}

BOOST_AUTO_TEST_CASE(a_program_that_does_not_say_its_rows_gets_an_error) {
  class Forgets final : public Counting {
   public:
    Forgets() : Counting(4) {}
    const std::vector<data::Field>& fields() const override { return fields_; }
    std::vector<data::Field> fields_{{.name = "x", .shape = {2}, .ragged = true}};
  };
  const Forgets data;
  BOOST_CHECK_EXCEPTION(data::EvalBatches(data, 2, 0, 1), UsageError,
                        mentions("field x is ragged", "rows()"));
}

BOOST_AUTO_TEST_CASE(a_ragged_batch_is_not_cut) {
  const TemporaryFolder folder;
  const data::Arrays graphs(make_graphs(folder));
  data::EvalBatches batches(graphs, 4, 0, 1);
  const Batch& batch = batches.read(0);
  BOOST_TEST(batch.rows(0, 4)["nodes"].size(0) == 6);
  BOOST_TEST(batch.rows(0, 0)["nodes"].size(0) == 0);
  BOOST_TEST(batch.rows(0, 0).samples() == 0);
  BOOST_CHECK_EXCEPTION(batch.rows(0, 2), UsageError, mentions("differ in size", "data.max_rows"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
