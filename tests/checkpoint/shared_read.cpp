// Ranks share the reading of a file: each byte is read once, what a rank owns goes to that rank alone, and an
// error of one reader is the error of all.
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "base/files.h"
#include "checkpoint/sample.h"
#include "lockstep/autograd/partition.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/agreement.h"
#include "support/forwarding.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(shared_read, *ranks(1, 2, 3, 4))

namespace lc = checkpoint;

constexpr std::int64_t mib = std::int64_t{1} << 20;

/// Two tensors of several rounds, small ones before and between them.
lc::StateDict large_state_dict() {
  lc::StateDict state_dict;
  state_dict.sections = {{"model",
                          {{"small", Tensor::zeros({77})},
                           {"large", Tensor::zeros({5 * mib + 3})},
                           {"middle", Tensor::zeros({mib / 3}, DType::float64)},
                           {"bytes", Tensor::zeros({18 * mib - 1}, DType::uint8)},
                           {"empty", Tensor::zeros({0, 3})}},
                          {}}};
  return state_dict;
}

constexpr std::uint64_t large_bytes = 77 * 4 + (5 * mib + 3) * 4 + mib / 3 * 8 + 18 * mib - 1;

struct LargeFile {
  SharedFolder folder{world()};
  std::string path = folder.file("large.h5");
  lc::StateDict saved = large_state_dict(), loaded = large_state_dict();

  LargeFile() {
    fill(saved, 3);
    lc::save_file(path, saved, world());
  }
};

/// What this process has read from files so far.
std::uint64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string name;
  std::uint64_t bytes = 0;
  file >> name >> bytes;
  BOOST_TEST_REQUIRE(name == "rchar:");
  return bytes;
}

/// Of all ranks together.
std::uint64_t bytes_read_by(const std::function<void()>& action) {
  const std::uint64_t before = bytes_read();
  action();
  const auto all = comm::all_gather_values(world(), bytes_read() - before);
  return std::accumulate(all.begin(), all.end(), std::uint64_t{0});
}

BOOST_FIXTURE_TEST_CASE(all_ranks_together_read_each_byte_once, LargeFile) {
  const std::uint64_t bytes = bytes_read_by([&] { lc::load_file(path, loaded, world()); });
  BOOST_TEST(same_bytes(saved, loaded));
  BOOST_TEST(bytes >= large_bytes);
  BOOST_TEST(bytes < large_bytes + mib);  // structure, and what MPI reads
}

BOOST_FIXTURE_TEST_CASE(weights_alone_are_read_once, LargeFile) {
  std::vector<Param> params(2);
  params[0].name = "small", params[0].value = Tensor::zeros({77});
  params[1].name = "large", params[1].value = Tensor::zeros({5 * mib + 3});
  ModelState model;
  for (Param& param : params) model.params.push_back(&param);
  const std::uint64_t bytes =
      bytes_read_by([&] { lc::load_weights(path, model, world(), "model", {.strict = false}); });
  for (std::size_t p = 0; p < 2; ++p) {
    const Tensor& there = saved.sections[0].tensors[p].value;
    BOOST_TEST(std::memcmp(params[p].value.raw(), there.raw(), there.bytes()) == 0, params[p].name);
  }
  BOOST_TEST(bytes < 20 * mib + mib);
}

/// Counts the bytes that a rank receives.
struct ReceiveCounter : Forwarding {
  using Forwarding::Forwarding;
  std::uint64_t by_all = 0, by_owner = 0;

  void all_gather_unequal(const void* mine, std::span<const std::size_t> bytes_of_rank, void* all) override {
    by_all += std::accumulate(bytes_of_rank.begin(), bytes_of_rank.end(), std::size_t{0});
    Forwarding::all_gather_unequal(mine, bytes_of_rank, all);
  }
  void all_to_all(std::span<const std::span<const std::byte>> to_rank,
                  std::span<const std::span<std::byte>> from_rank) override {
    for (const auto& from : from_rank) by_owner += from.size();
    Forwarding::all_to_all(to_rank, from_rank);
  }
};

/// A state dict of whole tensors as one whose large tensors are divided by `partition`.
lc::StateDict parts_of(const lc::StateDict& whole, const Partition& partition) {
  lc::StateDict parts = whole;
  for (std::size_t t = 0; t < partition.params(); ++t) {
    lc::NamedTensor& tensor = parts.sections[0].tensors[t];
    const Tensor mine = partition.part(t, tensor.value);
    tensor.part = PartitionView{&partition, t, tensor.value.shape()};
    tensor.value = Tensor::zeros(mine.shape(), mine.dtype());
  }
  return parts;
}

void check_parts(const lc::StateDict& parts, const lc::StateDict& whole, const Partition& partition) {
  for (std::size_t t = 0; t < partition.params(); ++t) {
    const Tensor &found = parts.sections[0].tensors[t].value,
                 expected = partition.part(t, whole.sections[0].tensors[t].value);
    BOOST_TEST(found.bytes() == expected.bytes());
    BOOST_TEST(std::memcmp(found.raw(), expected.raw(), found.bytes()) == 0, t);
  }
}

BOOST_FIXTURE_TEST_CASE(parts_of_a_sharded_state_go_to_their_owners_alone, LargeFile) {
  const Partition partition({77, 5 * mib + 3, mib / 3}, world(), {false, false, true});
  lc::StateDict parts = parts_of(saved, partition);
  std::uint64_t part_bytes = 0;
  for (std::size_t t = 0; t < partition.params(); ++t)
    part_bytes += parts.sections[0].tensors[t].value.bytes();
  ReceiveCounter group(world());
  const std::uint64_t bytes = bytes_read_by([&] { lc::load_file(path, parts, group); });
  check_parts(parts, saved, partition);
  BOOST_TEST(bytes < large_bytes + mib);
  if (world().size() == 1) return;
  BOOST_TEST(group.by_owner == part_bytes);
  BOOST_TEST(group.by_all < 18 * mib + mib / 10);  // the tensor that all hold, and the index
}

BOOST_FIXTURE_TEST_CASE(a_rank_alone_reads_its_part_of_a_state_that_others_share, LargeFile) {
  const Partition partition({77, 5 * mib + 3, mib / 3}, world());
  lc::StateDict parts = parts_of(saved, partition);
  const auto alone = comm::make_self_communicator();
  lc::load_file(path, parts, *alone);
  check_parts(parts, saved, partition);
}

BOOST_FIXTURE_TEST_CASE(ranks_that_list_different_tensors_load_them_all, LargeFile) {
  lc::StateDict mine = loaded;
  if (world().rank() == 0) mine.sections[0].tensors.resize(2);
  lc::load_file(path, mine, world(), {.strict = false});
  for (std::size_t t = 0; t < mine.sections[0].tensors.size(); ++t) {
    const Tensor &found = mine.sections[0].tensors[t].value, &expected = saved.sections[0].tensors[t].value;
    BOOST_TEST(std::memcmp(found.raw(), expected.raw(), found.bytes()) == 0, t);
  }
}

BOOST_FIXTURE_TEST_CASE(ranks_cast_what_others_have_read, LargeFile) {
  lc::StateDict wide = large_state_dict();
  for (const std::size_t t : {0, 1}) {
    Tensor& tensor = wide.sections[0].tensors[t].value;
    tensor = Tensor::zeros(tensor.shape(), DType::float64);
  }
  lc::load_file(path, wide, world());
  for (const std::size_t t : {0, 1}) {
    const Tensor &found = wide.sections[0].tensors[t].value, &expected = saved.sections[0].tensors[t].value;
    BOOST_TEST(
        std::equal(expected.data<float>(), expected.data<float>() + expected.numel(), found.data<double>()));
  }
}

/// The same error on all ranks; its text.
std::string error_of_all(const std::function<void()>& action) {
  std::string text = "no error";
  try {
    action();
  } catch (const Error& error) {
    text = error.what();
  }
  const auto all = world().all_gather_texts(text);
  BOOST_TEST(all == std::vector<std::string>(all.size(), all[0]), boost::test_tools::per_element());
  return all[0];
}

BOOST_FIXTURE_TEST_CASE(damage_that_any_rank_reads_makes_all_fall_back_together, LargeFile) {
  lc::Store store(folder.file("run"), world(), {.keep = 0});
  store.save_state_dict(1, saved);
  store.save_state_dict(2, saved);
  const std::string newest = store.directory() + "/step-000000002.h5";
  const lc::FileIndex index = lc::read_index(newest, world());
  if (world().rank() == 0) {
    std::string bytes = read_bytes(newest);
    char& last = bytes[index.tensors[1].offset + index.tensors[1].bytes - 1];  // of the last reader
    last = static_cast<char>(last ^ 1);
    write_bytes(newest, bytes);
  }
  world().barrier();
  const std::string said = error_of_all([&] { lc::load_file(newest, loaded, world()); });
  BOOST_TEST(said == std::filesystem::canonical(newest).string() +
                         ": /model/large is damaged: its digest does not match");
  BOOST_TEST(store.resume_state_dict(loaded) == 1);
  BOOST_TEST(same_bytes(saved, loaded));
  BOOST_TEST(std::filesystem::exists(newest + ".bad"));
}

/// Lets the last rank read another file than the others.
lc::FileIndex with_another_file(const LargeFile& file, const std::string& path) {
  lc::FileIndex index = lc::read_index(file.path, world());
  if (world().rank() == world().size() - 1)
    index.file = std::make_shared<const OpenFile>(path, OpenFile::Mode::read);
  return index;
}

/// "rank 2: " if the others did not fail.
std::string last_rank() {
  return world().size() == 1 ? std::string() : "rank " + std::to_string(world().size() - 1) + ": ";
}

BOOST_FIXTURE_TEST_CASE(an_error_of_one_reader_is_the_error_of_all, LargeFile) {
  lc::Store store(folder.file("run"), world());
  // Reading memory where there is none is an input/output error, as of a failing disk.
  const lc::FileIndex failing = with_another_file(*this, "/proc/self/mem");
  BOOST_TEST(error_of_all([&] { store.fork_state_dict(failing, loaded); }) ==
             last_rank() + "/proc/self/mem: cannot read: Input/output error");
}

BOOST_FIXTURE_TEST_CASE(a_file_that_is_short_on_one_rank_is_an_error_of_all, LargeFile) {
  lc::Store store(folder.file("run"), world());
  const std::string cut = folder.file("cut.h5");
  if (world().rank() == 0) write_bytes(cut, read_bytes(path).substr(0, 5000));
  world().barrier();
  const lc::FileIndex index = with_another_file(*this, cut);
  const std::string said = error_of_all([&] { store.fork_state_dict(index, loaded); });
  BOOST_TEST(said.starts_with(last_rank() + cut + ": cannot read: the file ends at byte "), said);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
