// Tokenizers: bytes, what files keep of one, and names that a program lacks.
#include "lockstep/data/tokenizer.h"

#include <boost/test/unit_test.hpp>

#include "data/files.h"
#include "lockstep/base/error.h"
#include "lockstep/data/text.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(tokenizer)

using data::StoredTokenizer;
using data::Tokenizers;

/// Token i is the character i of a text.
class Letters final : public data::Tokenizer {
 public:
  explicit Letters(const std::string& text) : letters_(text) {}
  std::int64_t vocabulary() const override { return std::ssize(letters_); }
  std::vector<std::int64_t> encode(std::string_view text) const override {
    std::vector<std::int64_t> tokens;
    for (const char c : text) tokens.push_back(static_cast<std::int64_t>(letters_.find(c)));
    return tokens;
  }
  std::string decode(std::span<const std::int64_t> tokens) const override {
    std::string text;
    for (const std::int64_t token : tokens) text += letters_.at(static_cast<std::size_t>(token));
    return text;
  }
  std::string text() const override { return letters_; }

 private:
  std::string letters_;
};

BOOST_AUTO_TEST_CASE(every_text_of_bytes_comes_back) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  text += "\xC3\xA9 \xFF\xFE";
  const data::Bytes bytes;
  const std::vector<std::int64_t> tokens = bytes.encode(text);
  BOOST_TEST(bytes.vocabulary() == 256);
  BOOST_TEST(tokens.size() == text.size());
  BOOST_TEST((tokens[0] == 0 && tokens[200] == 200 && tokens[255] == 255));
  BOOST_TEST(bytes.decode(tokens) == text);
  BOOST_TEST(bytes.encode("").empty());
  for (const std::int64_t token : {-1, 256})
    BOOST_CHECK_EXCEPTION(bytes.decode(std::vector{token}), UsageError, mentions("is not a byte"));
}

BOOST_AUTO_TEST_CASE(an_id_is_the_name_and_where_there_is_a_text_the_digest_of_both) {
  BOOST_TEST((StoredTokenizer{"bytes", ""}.id()) == "bytes");
  const std::string id = StoredTokenizer{"letters", "abc"}.id();
  BOOST_TEST(id.starts_with("letters "));
  BOOST_TEST(id == (StoredTokenizer{"letters", "abc"}.id()));
  BOOST_TEST(id != (StoredTokenizer{"letters", "abd"}.id()));
  BOOST_TEST(id.substr(8) != (StoredTokenizer{"other", "abc"}.id().substr(6)));
}

BOOST_AUTO_TEST_CASE(a_program_makes_the_tokenizers_that_it_has_and_refuses_others_by_name) {
  Tokenizers registry;
  add_built_in(registry);
  registry.add<Letters>("letters");
  BOOST_TEST(
      (StoredTokenizer{"letters", "abc"}.make(registry, "a.h5")->decode(std::vector<std::int64_t>{2, 0})) ==
      "ca");
  BOOST_CHECK_EXCEPTION((StoredTokenizer{"none", ""}.make(registry, "a.h5")), UsageError,
                        mentions("a.h5: unknown tokenizer \"none\"", "this program has bytes, bpe, letters"));
  BOOST_CHECK_EXCEPTION((StoredTokenizer{"bytes", "abc"}.make(registry, "a.h5")), DataError,
                        mentions("a.h5: tokenizer_text differs from the text() of the tokenizer bytes"));
}

BOOST_AUTO_TEST_CASE(files_keep_name_and_text_and_only_those_with_the_same_are_one_text) {
  const TemporaryFolder folder;
  const auto make = [&](const std::string& name, const std::string& kind, const data::Tokenizer& by) {
    hdf5::File file = hdf5::File::open_for_writing(make_text(folder, name, 31));
    hdf5::Dataset tokens = file.open_dataset("tokens");
    store_tokenizer(tokens, kind, by);
    file.close();
    return folder.file(name);
  };
  const std::string hundred(100, 'a'), lines = fmt::format("b\n{:a<98}", "");
  const std::string a = make("a.h5", "letters", Letters(hundred)),
                    b = make("b.h5", "letters", Letters(lines)), c = make("c.h5", "bytes", data::Bytes());
  BOOST_TEST(data::Text(b, 10).meaning("x").tokens.value.text == lines);
  BOOST_TEST(data::Text(b, 10).tokenizer() == (StoredTokenizer{"letters", lines}.id()));
  BOOST_TEST((data::Text({a, a}, 10).size()) == 6);
  BOOST_CHECK_EXCEPTION(data::Text({a, b}, 10), DataError,
                        mentions("b.h5: has vocabulary 100 of tokenizer 'letters "));
  BOOST_TEST(data::Text(c, 10).tokenizer() == "bytes");
  BOOST_TEST(data::Text(c, 10).meaning("x").tokens.value.text == "");
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
