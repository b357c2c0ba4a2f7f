// Token files: windows, several files, and what is refused.
#include "lockstep/data/text.h"

#include <boost/test/unit_test.hpp>

#include "data/files.h"
#include "lockstep/base/error.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(text)

namespace h5 = hdf5;
using data::Text;

struct Folder {
  TemporaryFolder folder;
};

BOOST_FIXTURE_TEST_CASE(windows_do_not_overlap_and_targets_are_the_next_tokens, Folder) {
  const Text text(make_text(folder, "t.h5", 31), 10);
  BOOST_TEST(text.size() == 3);
  BOOST_TEST(text.vocabulary() == 100);
  BOOST_TEST(text.tokenizer() == "counting");
  const Samples samples(text, {2, 0});
  std::vector<std::int64_t> x = range(20, 30), y = range(21, 31);
  for (const std::int64_t t : range(0, 10)) x.push_back(t), y.push_back(t + 1);
  BOOST_TEST(values_of<std::int64_t>(samples.x) == x);
  BOOST_TEST(values_of<std::int64_t>(samples.y) == y);
}

BOOST_FIXTURE_TEST_CASE(a_short_last_window_is_left_out, Folder) {
  const std::string path = make_text(folder, "t.h5", 30);
  BOOST_TEST(Text(path, 10).size() == 2);  // the third lacks its last target
  BOOST_TEST(Text(path, 29).size() == 1);
  BOOST_TEST(Text(path, 1).size() == 29);
  BOOST_CHECK_EXCEPTION(Text(path, 30), DataError, mentions("t.h5: /tokens has 30 tokens"));
  BOOST_CHECK_THROW(Text(path, 0), UsageError);
}

BOOST_FIXTURE_TEST_CASE(files_follow_one_another_and_are_read_alike_from_memory_and_from_disk, Folder) {
  const std::vector<std::string> paths{make_text(folder, "a.h5", 25), make_text(folder, "b.h5", 42, 50)};
  const Text loaded(paths, 8), streamed(paths, 8, {.memory_limit_bytes = 0});
  BOOST_TEST(loaded.size() == 8);
  const Samples a(loaded, {7, 3, 2}), b(streamed, {7, 3, 2});
  BOOST_TEST(values_of<std::int64_t>(a.x) == values_of<std::int64_t>(b.x));
  BOOST_TEST(values_of<std::int64_t>(a.y) == values_of<std::int64_t>(b.y));
  BOOST_TEST(a.x.data<std::int64_t>()[8] == 50);  // sample 3: the second file's first window
}

BOOST_FIXTURE_TEST_CASE(tokens_outside_the_vocabulary_are_named_by_index_and_value, Folder) {
  const std::string path = make_text(folder, "t.h5", 30);
  h5::File::open_for_writing(path).open_dataset("tokens").write_rows(
      17, 1, std::span<const std::uint16_t>(std::vector<std::uint16_t>{100}));
  BOOST_CHECK_EXCEPTION(Text(path, 5), DataError,
                        mentions("t.h5: token 17 of /tokens is 100, which is not in the vocabulary of 100"));
  const Text streamed(path, 5, {.memory_limit_bytes = 0});
  Samples(streamed, {0, 1, 2});
  BOOST_CHECK_EXCEPTION(Samples(streamed, {3}), DataError, mentions("token 17"));
}

BOOST_FIXTURE_TEST_CASE(wide_tokens_and_attributes_on_the_file_are_read, Folder) {
  const std::string path = folder.file("w.h5");
  {
    h5::File file = h5::File::create(path);
    file.create_dataset("tokens", DType::uint32, {3})
        .write(std::span<const std::uint32_t>(std::vector<std::uint32_t>{1, 100000, 2}));
    file.set_attribute("vocabulary", 100001);
  }
  const Text text(path, 2);
  BOOST_TEST(values_of<std::int64_t>(Samples(text, {0}).y) == (std::vector<std::int64_t>{100000, 2}));
  BOOST_TEST(text.tokenizer() == "");
}

BOOST_FIXTURE_TEST_CASE(a_file_that_is_wrong_is_refused_with_its_name_and_what_is_wrong, Folder) {
  using enum DType;
  BOOST_CHECK_EXCEPTION(Text(folder.file("none.h5"), 4), DataError, mentions("No such file"));
  BOOST_CHECK_EXCEPTION(
      Text(make_images(folder, "i.h5", 3), 4), DataError,
      mentions("i.h5: /tokens is missing: this is a data file of images, but text is needed"));
  h5::File::create(folder.file("r.h5")).create_dataset("tokens", uint16, {3, 3});
  BOOST_CHECK_EXCEPTION(Text(folder.file("r.h5"), 4), DataError, mentions("/tokens is uint16 [3, 3]"));
  h5::File::create(folder.file("f.h5")).create_dataset("tokens", float32, {30});
  BOOST_CHECK_EXCEPTION(Text(folder.file("f.h5"), 4), DataError, mentions("/tokens is float32 [30]"));
  h5::File::create(folder.file("v.h5")).create_dataset("tokens", uint16, {30});
  BOOST_CHECK_EXCEPTION(Text(folder.file("v.h5"), 4), DataError,
                        mentions("'vocabulary' of /tokens does not exist"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
