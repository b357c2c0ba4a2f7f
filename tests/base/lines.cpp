// Lines of texts, of the ends of files and of INI files.
#include "base/text.h"

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <string>

#include "base/files.h"
#include "lockstep/base/option.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(lines)

using Kind = IniLine::Kind;

BOOST_AUTO_TEST_CASE(the_last_line_of_a_text_may_have_no_end) {
  using Lines = std::vector<std::string_view>;
  BOOST_TEST((lines_of("a\n\nb") == Lines{"a", "", "b"}));
  BOOST_TEST((lines_of("a\n") == Lines{"a"}));
  BOOST_TEST(lines_of("").empty());
}

BOOST_AUTO_TEST_CASE(the_end_of_a_file_has_whole_lines) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "log").string();
  const auto at_end = [&](const std::string& text, std::uint64_t max_bytes) {
    std::ofstream(path, std::ios::binary) << text;
    return lines_at_end(OpenFile(path, OpenFile::Mode::read), max_bytes);
  };
  EndOfFile end = at_end("first\nsecond\nto", 100);
  BOOST_TEST(end.text == "first\nsecond\n");
  BOOST_TEST(end.offset == 0u);
  end = at_end("first\nsecond\nto", 12);  // from "rst"
  BOOST_TEST(end.text == "second\n");
  BOOST_TEST(end.offset == 6u);
  BOOST_TEST(at_end("first\nsecond\nto", 5).text.empty());
  BOOST_TEST(at_end("no end", 100).text.empty());
  BOOST_TEST(at_end("", 100).text.empty());
}

BOOST_AUTO_TEST_CASE(ini_lines_have_sections_keys_and_values) {
  const std::string text =
      "top = 1\n# a comment\n\n[train] # here\n steps = 600 # \r\nempty =\nneither # nor\n[data]\n"
      "train=a.h5 b.h5 = c";
  const auto all = ini_lines(text);
  BOOST_REQUIRE(all.size() == 7u);
  BOOST_TEST((all[0].kind == Kind::key && all[0].section.empty() && all[0].name() == "top"));
  BOOST_TEST((all[1].kind == Kind::section && all[1].section == "train" && all[1].number == 4));
  BOOST_TEST((all[2].name() == "train.steps" && all[2].value == "600"));
  BOOST_TEST((all[3].key == "empty" && all[3].value.empty() && all[3].number == 6));
  BOOST_TEST((all[4].kind == Kind::neither && all[4].number == 7 && all[4].key == "neither"));
  BOOST_TEST((all[6].section == "data" && all[6].value == "a.h5 b.h5 = c" && all[6].number == 9));
  BOOST_TEST(ini_lines("\n \n# = \n").empty());
}

BOOST_AUTO_TEST_CASE(comments_do_not_begin_within_quotes) {
  const auto value_of = [](const std::string& value) {
    const std::string text = "key = " + value;
    return option::unquoted(std::string(ini_lines(text).at(0).value));
  };
  BOOST_TEST(value_of("a # b") == "a");
  BOOST_TEST(value_of("\"a # b\" # c") == "a # b");
  BOOST_TEST(value_of("'a # b'# c") == "a # b");
  BOOST_TEST(value_of("\"a \\\" # b\" # c") == "a \" # b");
  BOOST_TEST((ini_lines("key = \"not closed # c").at(0).value == "\"not closed # c"));
  BOOST_TEST(value_of("it's # c") == "it's");  // quotes within a word are letters
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
