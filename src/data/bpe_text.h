// The definition of a Bpe: what a tokenizer.json of Hugging Face says, and how one is made.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/unicode.h"
#include "data/word_splitter.h"
#include "lockstep/base/random.h"

namespace lockstep::data {

using Pair = std::pair<std::uint32_t, std::uint32_t>;  ///< of tokens
struct PairHash {
  std::size_t operator()(const Pair& pair) const {
    return mix_bits(std::uint64_t{pair.first} << 32 | pair.second);
  }
};

struct BpeText {
  using Id = std::uint32_t;
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Ids = std::unordered_map<std::string, Id, Hash, std::equal_to<>>;
  struct Added {
    std::string content;
    Id id = 0;
    bool special = false;
  };

  NormalForm form = NormalForm::none;
  bool adds_prefix_space = false;
  std::vector<SplitStep> steps;
  bool ignores_merges = false;
  Ids words;                                                ///< of model.vocab, as bytes
  std::vector<std::string> tokens;                          ///< by id, as bytes; also those added
  std::vector<std::pair<std::string, std::string>> merges;  ///< as bytes, by rank
  std::vector<Added> added;
  std::int64_t end_of_document = -1;

  bool normalizes() const { return form != NormalForm::none || adds_prefix_space; }
};
/// DataError with the key, if the text is not that of a tokenizer.json, or asks for more than a Bpe does.
BpeText parse_bpe(std::string_view text);

/// DataError if a word is longer than any of a text: its merge would take gigabytes.
void check_word(std::string_view word);

/// The pattern that matches this text only.
std::string literal_pattern(std::string_view text);

/// The text of a tokenizer.json, or of the files in a folder or beside this one; see read_tokenizer().
std::string read_bpe(const std::string& path, const std::string& end_of_document);

/// The text of a tokenizer by GPT-2's rules: `end_of_document` is token 0, then the bytes, in the order of
/// their characters, and of these `merges` tokens. UsageError if one of these is `end_of_document`, too.
std::string make_bpe(std::span<const Pair> merges, const std::string& end_of_document);
/// GPT-2's pattern of words.
extern const char* const gpt2_pattern;
/// The bytes in the order of their characters in byte-level vocabularies.
std::span<const unsigned char, 256> byte_alphabet();

/// Counts of words, as bytes.
using WordCounts = std::unordered_map<std::string, std::int64_t, BpeText::Hash, std::equal_to<>>;
/// The merges that Hugging Face's BpeTrainer learns: at most `count`, of tokens that are numbered as in
/// make_bpe(). A new token has the number of the token of equal bytes, if there is one, else the next.
std::vector<Pair> learn_merges(const WordCounts& words, std::int64_t tokens);

}  // namespace lockstep::data
