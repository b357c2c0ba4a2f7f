// Data in the memory of a node: one copy, of which each rank reads a part.
#include <boost/test/unit_test.hpp>
#include <filesystem>

#include "comm/layouts.h"
#include "comm/mpi_calls.h"
#include "data/files.h"
#include "lockstep/base/error.h"
#include "lockstep/data/arrays.h"
#include "lockstep/data/text.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(node_memory, *ranks(1, 2, 3, 4))

constexpr std::int64_t images = 50, bytes_of_file = images * (24 + 8);

/// Each rank has another file here, so that a sample tells who read it. All files of a test are as long.
struct Files {
  TemporaryFolder folder;
  std::string path = make_images(folder, "a.h5", images, world().rank());
  data::Arrays data{path, {.memory_limit_bytes = 0}};

  std::int64_t first_value(std::int64_t image) const {
    return static_cast<std::int64_t>(read_samples(data, {image})["x"].data<std::int64_t>()[0]);
  }
};

BOOST_AUTO_TEST_CASE(each_rank_of_the_job_reads_its_part_of_the_rows_and_every_node_has_those_of_all) {
  for (const auto& layout : layouts(world().size())) {
    BOOST_TEST_CONTEXT(text_of(layout)) {
      const auto nodes = comm::make_mpi_communicator(MPI_COMM_WORLD, layout);
      Files files;
      std::int64_t left_bytes = bytes_of_file + 5;
      files.data.hold_on_node(*nodes, left_bytes);
      BOOST_TEST(left_bytes == 5);
      // x and y lie one after the other, each on a boundary of 64 bytes: a rank reads what begins in its
      // part.
      constexpr std::int64_t size = (images * 24 + 63) / 64 * 64 + (images * 8 + 63) / 64 * 64;
      const auto begin = [&](std::int64_t rank) { return size * rank / nodes->size(); };
      for (int rank = 0; rank < nodes->size(); ++rank)
        for (std::int64_t i = 0; i < images; ++i)
          if (24 * i >= begin(rank) && 24 * i < begin(rank + 1))
            BOOST_TEST(files.first_value(i) == (7 * 24 * i + rank) % 256);
      std::filesystem::resize_file(files.path, 100);
      BOOST_TEST(files.first_value(0) == 0);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(an_array_that_does_not_fit_is_read_from_its_file_and_a_smaller_one_is_held, Files) {
  std::int64_t left_bytes = images * 8;
  data.hold_on_node(world(), left_bytes);
  BOOST_TEST(left_bytes == 0);
  for (const std::int64_t i : {0, 20, 49}) BOOST_TEST(first_value(i) == (7 * 24 * i + world().rank()) % 256);
}

BOOST_FIXTURE_TEST_CASE(an_error_of_the_rank_that_reads_is_the_error_of_all, Files) {
  if (world().rank() == world().size() - 1) std::filesystem::resize_file(path, 100);
  std::int64_t left_bytes = bytes_of_file;
  BOOST_CHECK_EXCEPTION(data.hold_on_node(world(), left_bytes), DataError,
                        mentions("a.h5: the file changed while the run reads it"));
}

BOOST_AUTO_TEST_CASE(tokens_that_are_in_memory_are_all_below_the_vocabulary) {
  const TemporaryFolder folder;
  const std::string path = make_text(folder, "t.h5", 500, 0);
  {
    hdf5::File file = hdf5::File::open_for_writing(path);
    const std::vector<std::uint16_t> beyond{100};
    file.open_dataset("tokens").write_rows(499, 1, std::span<const std::uint16_t>(beyond));
    file.close();
  }
  data::Text text(path, 10, {.memory_limit_bytes = 0});
  std::int64_t left_bytes = 1000;
  BOOST_CHECK_EXCEPTION(text.hold_on_node(world(), left_bytes), DataError,
                        mentions("token 499 of /tokens is 100, which is not in the vocabulary of 100"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
