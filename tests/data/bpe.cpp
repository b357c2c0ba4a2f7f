// Byte-level BPE: texts come back, long documents in parts, what is refused; files of tokens and texts.
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/tokenizers.h"
#include "lockstep/base/error.h"
#include "lockstep/data/text.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(bpe)

using namespace data;
using nlohmann::json;
using Folder = TokenizerFolder;
BOOST_AUTO_TEST_CASE(tokens_give_any_bytes_back_at_once_and_one_by_one) {
  std::mt19937 draw(seed());
  BOOST_TEST_CONTEXT("LOCKSTEP_TEST_SEED=" << seed()) {
    for (const char* const name : {"gpt2", "llama3", "qwen2", "smollm", "prefix"}) {
      const auto tokenizer = made(definition(name));
      for (int i = 0; i < 500; ++i) {
        const std::string text = random_text(draw, draw() % 40), wanted = tokenizer->normalize(text, true);
        BOOST_TEST((tokenizer->normalizes() || wanted == text));
        const Ids ids = tokenizer->encode(text);
        BOOST_TEST(tokenizer->decode(ids) == wanted);
        TokenStream stream(*tokenizer);
        std::string streamed;
        for (const std::int64_t id : ids) streamed += stream.add(id);
        BOOST_TEST(streamed + stream.rest() == wanted);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_stream_of_tokens_cuts_no_character) {
  const Bytes bytes;
  TokenStream stream(bytes);
  std::vector<std::string> shown;
  for (const unsigned char byte : std::string("a\xC3\xA9\xF0\x9F\x98\x80\xE4\xB8"))
    shown.push_back(stream.add(byte));
  BOOST_TEST((shown == std::vector<std::string>{"a", "", "é", "", "", "", "😀", "", ""}));
  BOOST_TEST(stream.rest() == "\xE4\xB8");
}

BOOST_AUTO_TEST_CASE(a_byte_that_is_no_character_is_its_own_token_between_words) {
  const auto tokenizer = made(definition("gpt2"));
  Ids wanted = tokenizer->encode("ka");
  const Ids more = tokenizer->encode("ka");
  wanted.push_back(tokenizer->encode("\xFF").at(0));
  wanted.insert(wanted.end(), more.begin(), more.end());
  BOOST_TEST(tokenizer->encode("ka\xFFka") == wanted);
  BOOST_TEST(tokenizer->encode("\xFF").size() == 1u);
}

BOOST_AUTO_TEST_CASE(parts_of_a_text_have_the_tokens_of_the_whole) {
  std::mt19937 draw(seed());
  BOOST_TEST_CONTEXT("LOCKSTEP_TEST_SEED=" << seed()) {
    for (const char* const name : {"gpt2", "llama3", "qwen2", "smollm"}) {
      const auto tokenizer = made(definition(name));
      for (int i = 0; i < 100; ++i) {
        const std::string raw = random_text(draw, 300), text = tokenizer->normalize(raw, true);
        Ids ids;
        for (std::size_t at = 0; at < text.size();) {
          const std::size_t stop = 1 + draw() % 50, size = std::min(text.size() - at, stop + draw() % 100);
          at += tokenizer->encode_until(std::string_view(text).substr(at, size), std::min(stop, size),
                                        at + size == text.size(), ids);
        }
        BOOST_TEST(ids == tokenizer->encode(raw));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(what_a_tokenizer_asks_for_beyond_byte_level_bpe_is_refused_by_name) {
  const auto refuses = [](const char* pointer, const json& value, const std::vector<std::string>& texts) {
    json changed = definition("llama3");
    changed[json::json_pointer(pointer)] = value;
    BOOST_TEST_CONTEXT(pointer) BOOST_CHECK_EXCEPTION(made(changed), DataError, mentions(texts));
  };
  refuses("/model/type", "WordPiece", {"t.json: ", "model.type is WordPiece", "may be BPE"});
  refuses("/model/type", "Unigram", {"model.type is Unigram"});
  refuses("/model/unk_token", "<unk>", {"model.unk_token"});
  refuses("/model/dropout", 0.1, {"model.dropout is 0.1"});
  refuses("/model/byte_fallback", true, {"model.byte_fallback"});
  refuses("/model/continuing_subword_prefix", "##", {"model.continuing_subword_prefix"});
  refuses("/model/vocab/a", nullptr, {"model.vocab", "\"a\""});
  refuses("/model/vocab/a", 1 << 30, {"model.vocab", "must be from 0"});
  refuses("/model/merges/7", "a", {"model.merges, number 7", "must be two tokens"});
  refuses("/model/merges/7", json::array({"zz", "zz"}), {"model.merges, number 7", "is not in model.vocab"});
  refuses("/model/merges", 3, {"model.merges is missing, or is not a list"});
  refuses("/normalizer", {{"type", "NFD"}}, {"normalizer is NFD", "NFC"});
  refuses("/pre_tokenizer", nullptr, {"pre_tokenizer", "ByteLevel"});
  refuses("/pre_tokenizer", {{"type", "Metaspace"}}, {"pre_tokenizer is Metaspace"});
  refuses("/pre_tokenizer/pretokenizers/0/behavior", "Removed", {"behavior is Removed"});
  refuses("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a", {"pattern \"(a\"", "parenthesis"});
  refuses("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(?<=a)b", {"looks behind"});
  refuses("/decoder", {{"type", "Metaspace"}}, {"decoder is Metaspace"});
  refuses("/added_tokens/0/single_word", true, {"added_tokens, number 0", "single_word"});
  refuses("/added_tokens/0/id", 9'999'999'999'999'999'999u, {"number 0.id is 9999999999999999999"});
  refuses("/model/end_of_document", "<|none|>", {"<|none|>", "is not in added_tokens"});
  refuses("/model/end_of_document", 3, {"tokenizer: model.end_of_document is 3"});
  BOOST_CHECK_EXCEPTION((StoredTokenizer{"bpe", "{\"model\": "}.make(registry(), "t.json")), DataError,
                        mentions("t.json: tokenizer: is no JSON"));
  BOOST_CHECK_EXCEPTION((StoredTokenizer{"bpe", std::string(100'000, '[')}.make(registry(), "t.json")),
                        DataError, mentions("levels"));
}

BOOST_AUTO_TEST_CASE(a_pattern_beyond_the_limits_of_pcre2_is_an_error_of_a_line) {
  json changed = definition("llama3");
  changed["/pre_tokenizer/pretokenizers/0/pattern/Regex"_json_pointer] = "(?:a+)+[bc]|(?:a|a?)+d";
  BOOST_CHECK_EXCEPTION(made(changed)->encode(std::string(5000, 'a')), DataError, mentions("PCRE2 gives up"));
}

BOOST_AUTO_TEST_CASE(a_damaged_definition_is_an_error_of_a_line_or_a_tokenizer) {
  std::mt19937 draw(seed());
  BOOST_TEST_CONTEXT("LOCKSTEP_TEST_SEED=" << seed()) {
    const std::string text = json_text(definition("qwen2"));
    for (int i = 0; i < 60; ++i) {
      std::string damaged = text;
      for (unsigned k = 0; k <= draw() % 3; ++k)
        damaged[draw() % damaged.size()] = "0\"[]{},:\\\xFF"[draw() % 10];
      if (draw() % 8 == 0) damaged.resize(draw() % damaged.size());
      try {
        const auto tokenizer = StoredTokenizer{"bpe", damaged}.make(registry(), "t.json");
        BOOST_TEST(tokenizer->decode(tokenizer->encode("ka 12\xFF")).size() >= 5u);
      } catch (const DataError& error) {
        BOOST_TEST(!contains(error.what(), "\n"));
      }
    }
  }
}

BOOST_FIXTURE_TEST_CASE(a_tokenizer_is_read_from_its_file_a_folder_gpt2s_two_files_or_a_data_file, Folder) {
  const json gpt2 = definition("gpt2");
  const std::string path = put("tokenizer.json", json_text(gpt2, 2));
  const StoredTokenizer stored = read_tokenizer(path);
  BOOST_TEST(stored.id() == (StoredTokenizer{"bpe", json_text(gpt2)}.id()));
  BOOST_TEST(read_tokenizer(folder.file("")).id() == stored.id());
  prepare({put("a.txt", "ka ka")}, {.tokenizer = path});
  BOOST_TEST(read_tokenizer(out).id() == stored.id());

  std::filesystem::create_directories(folder.path() / "gpt2");
  put("gpt2/vocab.json", json_text(gpt2.at("model").at("vocab")));
  std::string merges = "#version: 0.2\n";
  for (const json& merge : gpt2.at("model").at("merges"))
    merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
  put("gpt2/merges.txt", merges);
  const auto whole = made(gpt2);
  for (const char* const name : {"gpt2", "gpt2/vocab.json", "gpt2/merges.txt"}) {
    const auto tokenizer = read_tokenizer(folder.file(name)).make(registry(), name);
    BOOST_TEST(tokenizer->encode("it's kabo 12 é") == whole->encode("it's kabo 12 é"));
    BOOST_TEST(tokenizer->end_of_document() == whole->end_of_document());
    BOOST_TEST(tokenizer->encode_prompt("<|endoftext|>") == Ids{whole->end_of_document()});
  }
  put("gpt2/tokenizer_config.json", R"({"tokenizer_class": "Qwen2Tokenizer"})");
  BOOST_CHECK_EXCEPTION(read_tokenizer(folder.file("gpt2")), DataError,
                        mentions("Qwen2Tokenizer", "tokenizer.json"));
  BOOST_CHECK_EXCEPTION(read_tokenizer(put("empty.json", "")), DataError, mentions("empty.json: is no JSON"));
  BOOST_CHECK_EXCEPTION(read_tokenizer(folder.file("none.json")), DataError,
                        mentions("none.json: cannot open"));
}

BOOST_AUTO_TEST_CASE(the_end_of_documents_is_a_known_token_or_the_named_one) {
  BOOST_TEST(made(definition("gpt2"))->end_of_document() == 0);
  BOOST_TEST(made(definition("llama3"))->end_of_document() == 1);  // <|end_of_text|>
  json named = definition("llama3");
  named["model"]["end_of_document"] = "<|begin_of_text|>";
  BOOST_TEST(made(named)->end_of_document() == 0);
  BOOST_TEST(Bytes().end_of_document() == -1);
}

BOOST_FIXTURE_TEST_CASE(a_tokenizer_that_is_made_has_the_fields_that_hugging_face_needs_and_no_others,
                        Folder) {
  const std::string text = put("a.txt", "ka ka kabo"), llama = put("t.json", json_text(definition("llama3")));
  const auto fits = [&](const data::TextPreparation& how, std::int64_t end) {
    prepare({text}, how);
    const StoredTokenizer stored = read_tokenizer(out);
    const json root = json::parse(stored.text);
    const std::string name = stored.make(registry(), out)->decode(Ids{end});
    BOOST_TEST_CONTEXT(name) {
      BOOST_TEST(stored.make(registry(), out)->end_of_document() == end);
      BOOST_TEST(stored.make(registry(), out)->encode_prompt(name) == Ids{end});
      BOOST_TEST(tokens().back() == end);
      for (const auto& [key, value] : root.items())
        BOOST_TEST(definition("llama3").contains(key), key << " is no key of a tokenizer.json");
      BOOST_TEST(root.at("added_tokens").size() > 0u);
      for (const json& one : root.at("added_tokens"))
        for (const char* const field :
             {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"})
          BOOST_TEST(one.contains(field), field);
      if (how.tokenizer == llama) return;
      for (const char* const part : {"pre_tokenizer", "decoder"})
        for (const char* const field : {"add_prefix_space", "trim_offsets", "use_regex"})
          BOOST_TEST(root.at(part).contains(field), part << " " << field);
    }
  };
  fits({.train = 300}, 0);
  fits({.end_of_document = "<eod>", .train = 300}, 0);
  fits({.tokenizer = llama, .end_of_document = "<|begin_of_text|>"}, 0);
  std::filesystem::create_directories(folder.path() / "gpt2");
  json vocabulary = definition("gpt2").at("model").at("vocab");
  vocabulary["<eod>"] = 900;
  put("gpt2/vocab.json", json_text(vocabulary));
  put("gpt2/merges.txt", "");
  fits({.tokenizer = folder.file("gpt2"), .end_of_document = "<eod>"}, 900);
  put("gpt2/tokenizer_config.json", R"({"eos_token": {"content": "<|endoftext|>"}})");
  fits({.tokenizer = folder.file("gpt2")}, 0);
}

BOOST_FIXTURE_TEST_CASE(the_end_of_documents_is_no_token_that_the_text_teaches, Folder) {
  const std::string text = put("a.txt", "ka ka ka");
  for (const char* const name : {"ka", " ka", "a", "\u00e9"})
    BOOST_CHECK_EXCEPTION(prepare({text}, {.end_of_document = name, .train = 300}), UsageError,
                          mentions("--end-of-document", name));
  prepare({text}, {.end_of_document = "kabo", .train = 300});
  BOOST_TEST(tokens().back() == 0);
}

BOOST_FIXTURE_TEST_CASE(only_documents_teach_a_tokenizer, Folder) {
  std::filesystem::create_directories(folder.path() / "in");
  const std::string text = put("in/a.txt", "ka ka kabo"), lines = put("a.jsonl", "{\"t\": \"ka ka kabo\"}\n");
  const auto learned = [&](const std::string& input, const std::string& field) {
    prepare({input}, {.train = 300, .field = field});
    return json::parse(read_tokenizer(out).text).at("model").at("merges");
  };
  const json wanted = learned(text, "");
  BOOST_TEST((learned(lines, "t") == wanted));
  put("two.jsonl", "{\"t\": \"ka ka kabo\\n\"}\n{\"t\": \"\\n\"}\n");
  BOOST_TEST((learned(folder.file("two.jsonl"), "t") == wanted), "no line end follows a document");
  std::string late;
  while (late.size() < 3 << 20) late += "zuzu zuzu ";
  put("in/b.bin", late + std::string(20'000, '\0'));
  put("in/c.txt", late + std::string(2 << 20, 'a'));
  BOOST_TEST((learned(folder.file("in"), "") == wanted));
}

BOOST_FIXTURE_TEST_CASE(documents_end_with_their_token_and_texts_of_special_tokens_stay_texts, Folder) {
  const std::string path = put("t.json", json_text(definition("llama3")));
  const auto tokenizer = made(definition("llama3"));
  const std::string first = "kabo <|end_of_text|>\n", second = "zu";
  Ids wanted;
  for (const std::string& text : {first, second}) {
    for (const std::int64_t id : tokenizer->encode(text)) wanted.push_back(id);
    wanted.push_back(1);
  }
  const std::string a = put("a.txt", first), empty = put("b.txt", ""), c = put("c.txt", second);
  const Summary summary = prepare({a, empty, c}, {.tokenizer = path});
  BOOST_TEST(summary.documents == 2);
  BOOST_TEST(tokens() == wanted);
  BOOST_TEST(hdf5::File::open(out).open_dataset("tokens").int64_attribute("end_of_document") == 1);

  const std::string lines =
      json_text({{"t", first}}) + "\n\n" + json_text({{"t", ""}}) + "\n" + json_text({{"t", second}});
  prepare({put("docs.jsonl", lines)}, {.tokenizer = path, .field = "t"});
  BOOST_TEST(tokens() == wanted);
  prepare({folder.file("docs.jsonl")}, {.field = "t"});
  BOOST_TEST(Bytes().decode(tokens()) == first + "\n" + second + "\n");
  BOOST_CHECK_EXCEPTION(
      prepare({put("bad.jsonl", "{\"t\": \"a\"}\n{\"t\": \"b\"\n")}, {.tokenizer = path, .field = "t"}),
      DataError, mentions("bad.jsonl:2: is no JSON"));
  BOOST_CHECK_EXCEPTION(prepare({folder.file("docs.jsonl")}, {.tokenizer = path, .field = "x"}), DataError,
                        mentions("docs.jsonl:1: has no text \"x\""));
}

BOOST_FIXTURE_TEST_CASE(a_word_without_end_is_an_error_and_leaves_nothing, Folder) {
  const std::string path = put("t.json", json_text(definition("gpt2")));
  BOOST_CHECK_EXCEPTION(prepare({put("a.txt", std::string(20 << 20, 'a'))}, {.tokenizer = path}), DataError,
                        mentions("a.txt: a word of", "is it text?"));
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) ++files;
  BOOST_TEST(files == 2u);
}

BOOST_FIXTURE_TEST_CASE(a_file_that_turns_out_to_be_no_text_leaves_no_tokens, Folder) {
  const std::string path = put("t.json", json_text(definition("gpt2")));
  std::filesystem::create_directories(folder.path() / "in");
  put("in/a.txt", "ka");
  std::string late;
  while (late.size() < 3 << 20) late += "kabo zu ";
  put("in/b.bin", late + std::string(20'000, '\0'));
  put("in/c.txt", "zu");
  const Summary summary = prepare({folder.file("in")}, {.tokenizer = path});
  BOOST_TEST(summary.documents == 2);
  BOOST_TEST(summary.notes.size() == 1u);
  Ids wanted;
  for (const char* const text : {"ka", "<|endoftext|>", "zu", "<|endoftext|>"})
    for (const std::int64_t id : made(definition("gpt2"))->encode_prompt(text)) wanted.push_back(id);
  BOOST_TEST(tokens() == wanted);
}

BOOST_FIXTURE_TEST_CASE(a_file_of_a_folder_that_the_tokenizer_does_not_take_is_skipped, Folder) {
  std::filesystem::create_directories(folder.path() / "in");
  std::string words, accents;
  while (words.size() < 3 << 20) words += "kabo zu ", accents += "\u00e9\u00e9\u00e9\u00e9";
  put("in/a.txt", "ka");
  put("in/b.txt", words + std::string(2 << 20, 'a') + words);
  put("in/c.txt", std::string(20 << 20, 'a'));  // more than a round
  put("in/d.txt", accents);
  put("in/e.txt", "zu");
  for (const char* const name : {"gpt2", "prefix"}) {
    const auto tokenizer = made(definition(name));
    const Summary summary =
        prepare({folder.file("in")}, {.tokenizer = put("t.json", json_text(definition(name)))});
    BOOST_TEST(summary.documents == 2);
    BOOST_TEST(summary.notes.size() == 3u);
    BOOST_TEST(contains(summary.notes.at(0), "b.txt: it is not taken as text: a word of"));
    Ids wanted;
    for (const char* const text : {"ka", "zu"}) {
      for (const std::int64_t id : tokenizer->encode(text)) wanted.push_back(id);
      wanted.push_back(tokenizer->end_of_document());
    }
    BOOST_TEST(tokens() == wanted);
  }
}

BOOST_FIXTURE_TEST_CASE(files_of_tokens_become_data_and_a_wrong_token_is_an_error_with_its_place, Folder) {
  const std::string path = put("t.json", json_text(definition("gpt2")));
  const TextPreparation how{.tokenizer = path};
  const auto bytes_of = [](const auto& numbers) {
    return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof numbers[0]);
  };
  const auto take = [&](const std::string& bytes, const std::string& dtype) {
    prepare_tokens(std::vector{put("t.bin", bytes)}, {out, true}, dtype, how, registry());
    return tokens();
  };
  const Ids wanted{3, 0, 899};
  BOOST_TEST(take(bytes_of(std::vector<std::uint16_t>{3, 0, 899}), "uint16") == wanted);
  BOOST_TEST(take(bytes_of(std::vector<std::uint32_t>{3, 0, 899}), "uint32") == wanted);
  BOOST_TEST(take(bytes_of(wanted), "int64") == wanted);
  std::vector<std::int32_t> header(256);
  header[0] = 20240520, header[1] = 1, header[2] = 3;
  BOOST_TEST(take(bytes_of(header) + bytes_of(std::vector<std::uint16_t>{3, 0, 899}), "") == wanted);
  header[0] = 20240801, header[1] = 7;
  BOOST_TEST(take(bytes_of(header) + bytes_of(std::vector<std::uint32_t>{3, 0, 899}), "") == wanted);
  BOOST_TEST(Text(out, 2).tokenizer() == read_tokenizer(path).id());
  header[2] = 4;
  BOOST_CHECK_EXCEPTION(take(bytes_of(header) + bytes_of(wanted), ""), DataError,
                        mentions("header says 4 tokens"));
  BOOST_CHECK_EXCEPTION(take(bytes_of(wanted), ""), UsageError, mentions("--dtype uint16, uint32 or int64"));
  BOOST_CHECK_EXCEPTION(take("abc", "uint16"), DataError, mentions("t.bin: has 3 bytes"));
  BOOST_CHECK_EXCEPTION(take("", "uint16"), DataError, mentions("no tokens in"));
  BOOST_CHECK_EXCEPTION(take(bytes_of(std::vector<std::uint16_t>{3, 900}), "uint16"), DataError,
                        mentions("t.bin: token 1 is 900, which is not in the vocabulary of 900"));
  BOOST_CHECK_EXCEPTION(take(bytes_of(Ids{0, 0, -1}), "int64"), DataError, mentions("token 2 is -1"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
