#include "base/text.h"

#include <boost/test/unit_test.hpp>
#include <vector>

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(names)

BOOST_AUTO_TEST_CASE(any_stack_of_wrapper_prefixes_is_stripped_from_the_front_only) {
  BOOST_TEST(strip_wrapper_prefix("module.fc.weight") == "fc.weight");
  BOOST_TEST(strip_wrapper_prefix("_orig_mod.module.module.fc.weight") == "fc.weight");
  BOOST_TEST(strip_wrapper_prefix("encoder.module.weight") == "encoder.module.weight");
  BOOST_TEST(strip_wrapper_prefix("modules.weight") == "modules.weight");
}

BOOST_AUTO_TEST_CASE(patterns_match_whole_names) {
  BOOST_TEST(matches_pattern("*.bias", "layer1.0.bias"));
  BOOST_TEST(!matches_pattern("*.bias", "layer1.0.bias_scale"));
  BOOST_TEST(matches_pattern("layer?.*.weight", "layer1.0.conv1.weight"));
  BOOST_TEST(matches_pattern("*", ""));
  BOOST_TEST(!matches_pattern("", "x"));
  BOOST_TEST(matches_pattern("a*b*c", "a.b.b.c"));
}

BOOST_AUTO_TEST_CASE(nearest_name_offers_a_misspelt_key_and_nothing_for_a_foreign_one) {
  const std::vector<std::string> keys{"train.steps", "train.seed", "optimizer.lr"};
  BOOST_TEST(nearest_name("train.step", keys) == "train.steps");
  BOOST_TEST(nearest_name("optimiser.lr", keys) == "optimizer.lr");
  BOOST_TEST(nearest_name("zzzzzzzzzz", keys) == "");
  const std::vector<std::string> models{"mlp", "resnet", "gpt"};
  BOOST_TEST(nearest_name("vit", models) == "");
  BOOST_TEST(nearest_name("gtp", models) == "");
  BOOST_TEST(nearest_name("resnte", models) == "resnet");
}

BOOST_AUTO_TEST_CASE(quoted_names_are_one_line_of_whole_characters) {
  BOOST_TEST(quote("") == "\"\"");
  BOOST_TEST(quote("a.weight") == "\"a.weight\"");
  BOOST_TEST(quote("a \"b\" \\ c\nd\t\x7f") == "\"a \\\"b\\\" \\\\ c\\nd\\x09\\x7f\"");
  BOOST_TEST(quote(std::string_view("\0", 1)) == "\"\\x00\"");
  BOOST_TEST(quote("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80") == "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
  // Cut off, overlong, a surrogate, beyond Unicode, a control character of two bytes.
  BOOST_TEST(quote("\xe2\x82") == "\"\\xe2\\x82\"");
  BOOST_TEST(quote("\xc0\x80") == "\"\\xc0\\x80\"");
  BOOST_TEST(quote("\xed\xa0\x80") == "\"\\xed\\xa0\\x80\"");
  BOOST_TEST(quote("\xf4\x90\x80\x80") == "\"\\xf4\\x90\\x80\\x80\"");
  BOOST_TEST(quote("\xc2\x9b") == "\"\\xc2\\x9b\"");
  const std::string long_name(119, 'n');
  BOOST_TEST(quote(long_name + "n") == "\"" + long_name + "n\"");
  BOOST_TEST(quote(long_name + "nn") == "\"" + long_name + "n\"...");
  BOOST_TEST(quote(long_name + "\xe2\x82\xac") == "\"" + long_name + "\"...");
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
