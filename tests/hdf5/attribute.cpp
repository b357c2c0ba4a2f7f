// Attributes: what is written comes back, and what does not fit is refused by name.
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/hdf5/file.h"
#include "support/mentions.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(attribute)

namespace h5 = hdf5;

struct OneFile {
  TemporaryFolder folder;
  std::string path = folder.file("a.h5");
};

BOOST_FIXTURE_TEST_CASE(attributes_come_back_as_they_were_written, OneFile) {
  {
    h5::File file = h5::File::create(path);
    file.set_attribute("text", "Grüße");
    file.set_attribute("empty", "");
    file.set_attribute("step", 12);
    file.set_attribute("lowest", std::numeric_limits<std::int64_t>::min());
    file.set_attribute("highest", std::numeric_limits<std::uint64_t>::max());
    file.set_attribute("rate", 0.1);
    file.set_attribute("mean", std::vector<double>{1.5, -2});
    h5::Group group = file.create_group("model");
    group.set_attribute("own", "x");
    h5::Dataset data = file.create_dataset("data", DType::float32, {2});
    data.set_attribute("own", 7u);
    file.close();
  }
  const h5::File file = h5::File::open(path);
  BOOST_TEST(file.text_attribute("text") == "Grüße");
  BOOST_TEST(file.text_attribute("empty") == "");
  BOOST_TEST((file.is_text_attribute("text") && !file.attribute_dtype("text")));
  BOOST_TEST((file.attribute_dtype("step") == DType::int64));
  BOOST_TEST((file.attribute_dtype("highest") == DType::uint64));
  BOOST_TEST((file.attribute_dtype("rate") == DType::float64));
  BOOST_TEST(file.int64_attribute("step") == 12);
  BOOST_TEST(file.uint64_attribute("step") == 12u);
  BOOST_TEST(file.double_attribute("step") == 12.0);
  BOOST_TEST(file.int64_attribute("lowest") == std::numeric_limits<std::int64_t>::min());
  BOOST_TEST(file.uint64_attribute("highest") == std::numeric_limits<std::uint64_t>::max());
  BOOST_TEST(file.double_attribute("rate") == 0.1);
  BOOST_TEST(file.doubles_attribute("mean") == (std::vector<double>{1.5, -2}));
  BOOST_TEST(file.doubles_attribute("rate") == std::vector<double>{0.1});
  BOOST_TEST(file.open_group("model").text_attribute("own") == "x");
  BOOST_TEST(file.open_dataset("/data").int64_attribute("own") == 7);
  BOOST_TEST(file.attribute_names() ==
             (std::vector<std::string>{"empty", "highest", "lowest", "mean", "rate", "step", "text"}));
}

BOOST_FIXTURE_TEST_CASE(writing_an_attribute_again_replaces_it, OneFile) {
  h5::File file = h5::File::create(path);
  file.set_attribute("digest", "a longer text");
  file.set_attribute("digest", 3);
  BOOST_TEST(file.int64_attribute("digest") == 3);
}

BOOST_FIXTURE_TEST_CASE(values_that_do_not_fit_are_refused_and_not_clipped, OneFile) {
  h5::File file = h5::File::create(path);
  file.set_attribute("big", std::numeric_limits<std::uint64_t>::max());
  file.set_attribute("largest", std::numeric_limits<std::int64_t>::max());
  file.set_attribute("negative", -1);
  BOOST_CHECK_EXCEPTION(file.int64_attribute("big"), DataError, mentions("'big'"));
  BOOST_TEST(file.int64_attribute("largest") == std::numeric_limits<std::int64_t>::max());
  BOOST_CHECK_EXCEPTION(file.uint64_attribute("negative"), DataError, mentions("'negative'"));
}

BOOST_FIXTURE_TEST_CASE(an_attribute_that_is_missing_or_of_another_kind_is_an_error_naming_it, OneFile) {
  h5::File file = h5::File::create(path);
  file.set_attribute("text", "abc");
  file.set_attribute("rate", 0.5);
  file.set_attribute("pair", std::vector<double>{1, 2});
  BOOST_CHECK_EXCEPTION(file.text_attribute("none"), DataError,
                        mentions("a.h5: attribute 'none' of / does not exist"));
  BOOST_CHECK_EXCEPTION(file.int64_attribute("text"), DataError, mentions("not an integer"));
  BOOST_CHECK_EXCEPTION(file.int64_attribute("rate"), DataError, mentions("not an integer"));
  BOOST_CHECK_EXCEPTION(file.text_attribute("rate"), DataError, mentions("not text"));
  BOOST_CHECK_EXCEPTION(file.double_attribute("pair"), DataError, mentions("not a single number"));
  BOOST_CHECK_EXCEPTION(file.set_attribute("bad", std::string_view("a\0b", 3)), UsageError,
                        mentions("null byte"));
}

BOOST_AUTO_TEST_CASE(variable_length_strings_as_h5py_writes_them_are_read) {
  const char* source = std::getenv("LOCKSTEP_SOURCE_DIR");
  BOOST_REQUIRE(source != nullptr);
  const h5::File file = h5::File::open(std::string(source) + "/tests/golden/layers.h5");
  const std::vector<h5::Link> cases = file.links(h5::Group::Order::name);
  BOOST_REQUIRE(cases.size() > 1);
  for (const h5::Link& link : cases) {
    BOOST_TEST((link.kind == h5::ObjectKind::group));
    const std::string text = file.open_group(link.name).text_attribute("case");
    BOOST_TEST(text.starts_with("{\"layer\": "));
    BOOST_TEST(text.ends_with("}"));
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
