// Byte-level byte-pair encoding: the tokenizers of GPT-2, Llama 3, Qwen and their kin. Tokens are those of
// the library `tokenizers` of Hugging Face without special tokens around a text (add_special_tokens=False).
// Text of special tokens is plain text for encode(). A byte that is not UTF-8 ends a word, and becomes its
// own token.
#define XXH_INLINE_ALL
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "base/text.h"
#include "data/bpe_text.h"
#include "lockstep/base/error.h"
#include "lockstep/data/tokenizer.h"

namespace lockstep::data {
namespace bpe {

using Id = BpeText::Id;

struct Merge {
  Id rank = 0, token = 0;
};
using Merges = std::unordered_map<Pair, Merge, PairHash>;

/// Joins the bytes of a word: the merge of the lowest rank first, of equal ones the leftmost.
class Joiner {
 public:
  template <class Use>
  void join(std::span<const Id> tokens, const Merges& merges, const Use& use) {
    symbols_.clear();
    queue_.clear();
    for (const Id token : tokens) {
      const auto at = static_cast<std::int32_t>(symbols_.size());
      symbols_.push_back({token, at - 1, at + 1});
      if (at > 0) consider(at - 1, merges);
    }
    symbols_.back().next = -1;
    while (!queue_.empty()) {
      const Waiting top = queue_.front();
      std::ranges::pop_heap(queue_, later);
      queue_.pop_back();
      Symbol& left = symbol(top.at);
      if (left.token != top.pair.first || left.next < 0) continue;
      Symbol& right = symbol(left.next);
      if (right.token != top.pair.second) continue;
      left = {top.merge.token, left.previous, right.next};
      right.token = gone;
      if (left.next >= 0) {
        symbol(left.next).previous = top.at;
        consider(top.at, merges);
      }
      if (left.previous >= 0) consider(left.previous, merges);
    }
    for (std::int32_t i = 0; i >= 0; i = symbol(i).next) use(symbol(i).token);
  }

 private:
  struct Symbol {
    Id token;
    std::int32_t previous, next;  // -1: none
  };
  struct Waiting {
    Merge merge;
    std::int32_t at;
    Pair pair;
  };
  static constexpr Id gone = ~Id{0};

  static bool later(const Waiting& a, const Waiting& b) {
    return std::pair(a.merge.rank, a.at) > std::pair(b.merge.rank, b.at);
  }
  Symbol& symbol(std::int32_t at) { return symbols_[static_cast<std::size_t>(at)]; }
  void consider(std::int32_t at, const Merges& merges) {
    const Pair pair(symbol(at).token, symbol(symbol(at).next).token);
    const auto merge = merges.find(pair);
    if (merge == merges.end()) return;
    queue_.push_back({merge->second, at, pair});
    std::ranges::push_heap(queue_, later);
  }

  std::vector<Symbol> symbols_;
  std::vector<Waiting> queue_;
};

/// The tokens of a short word that a thread has met.
struct KnownWord {
  static constexpr std::size_t max_bytes = 30, max_tokens = 8;
  std::uint8_t size = 0, tokens = 0;
  std::array<char, max_bytes> bytes;
  std::array<Id, max_tokens> ids;
};

/// The memory of a thread.
struct Scratch {
  std::uint64_t owner = 0;  // the tokenizer of the known words
  WordSplitter::Matcher matcher;
  Joiner joiner;
  std::vector<KnownWord> known;
  std::vector<Id> bytes;
};

std::vector<SplitStep> steps_of(const BpeText& text, bool is_prompt, bool splits_words) {
  std::vector<SplitStep> steps;
  std::vector<std::string> added;
  for (const BpeText::Added& token : text.added)
    if (is_prompt || !token.special) added.push_back(literal_pattern(token.content));
  // The longest of those that begin at a place.
  std::ranges::stable_sort(added, std::greater(), &std::string::size);
  if (!added.empty())
    steps.push_back(
        {.name = "added_tokens", .pattern = fmt::format("{}", fmt::join(added, "|")), .keeps = true});
  if (splits_words) std::ranges::copy(text.steps, std::back_inserter(steps));
  return steps;
}

class Bpe final : public Tokenizer {
 public:
  explicit Bpe(const std::string& text);

  std::int64_t vocabulary() const override { return std::ssize(text_.tokens); }
  std::vector<std::int64_t> encode(std::string_view text) const override {
    return encode_with(document_tokens_, document_words_, text);
  }
  std::vector<std::int64_t> encode_prompt(std::string_view text) const override {
    return encode_with(prompt_tokens_, prompt_words_, text);
  }
  std::string decode(std::span<const std::int64_t> tokens) const override;
  std::string text() const override { return definition_; }
  std::int64_t end_of_document() const override { return text_.end_of_document; }
  bool normalizes() const override { return text_.normalizes(); }
  std::string normalize(std::string_view text, bool begins) const override {
    return normalized(document_tokens_, text, begins);
  }
  std::size_t encode_until(std::string_view text, std::size_t stop, bool ends,
                           std::vector<std::int64_t>& tokens) const override;

 private:
  Scratch& scratch() const {
    thread_local Scratch own;
    if (own.owner != number_) own.known.assign(std::size_t{1} << 16, {});
    own.owner = number_;
    return own;
  }
  std::vector<std::int64_t> encode_with(const WordSplitter& added, const WordSplitter& words,
                                        std::string_view text) const;
  std::string normalized(const WordSplitter& added, std::string_view text, bool begins) const;
  std::size_t add_words(const WordSplitter& splitter, std::string_view text, std::size_t stop, bool ends,
                        std::vector<std::int64_t>& tokens) const;
  void add_word(std::string_view word, Scratch& scratch, std::vector<std::int64_t>& tokens) const;

  static inline std::atomic<std::uint64_t> last_number{0};
  const std::uint64_t number_ = ++last_number;
  const std::string definition_;
  BpeText text_;
  BpeText::Ids added_;           // by the text of an added token
  std::array<Id, 256> bytes_{};  // the tokens of single bytes
  Merges merges_;
  // Of documents, and of prompts: with special tokens.
  WordSplitter document_tokens_, document_words_, prompt_tokens_, prompt_words_;
};

Bpe::Bpe(const std::string& text)
    : definition_(text),
      text_(parse_bpe(text)),
      document_tokens_(steps_of(text_, false, false)),
      document_words_(steps_of(text_, false, true)),
      prompt_tokens_(steps_of(text_, true, false)),
      prompt_words_(steps_of(text_, true, true)) {
  const auto id_of = [&](const std::string& word, const std::string& where) {
    const auto found = text_.words.find(word);
    if (found == text_.words.end())
      throw DataError("tokenizer: {} is not in model.vocab, a vocabulary of bytes: {}", quote(word), where);
    return found->second;
  };
  for (std::size_t byte = 0; byte < bytes_.size(); ++byte)
    bytes_[byte] = id_of(std::string(1, static_cast<char>(byte)), "every byte must be");
  merges_.reserve(text_.merges.size());
  for (Id rank = 0; rank < text_.merges.size(); ++rank) {
    const auto& [left, right] = text_.merges[rank];
    const std::string where = fmt::format("model.merges, number {}", rank);
    const Merge merge{rank, id_of(left + right, where)};
    if (!merges_.emplace(Pair(id_of(left, where), id_of(right, where)), merge).second)
      throw DataError("tokenizer: {}: is there twice", where);
  }
  text_.merges = {};
  for (const BpeText::Added& token : text_.added) added_.emplace(token.content, token.id);
}

std::string Bpe::decode(std::span<const std::int64_t> tokens) const {
  std::string text;
  for (const std::int64_t token : tokens) {
    if (token < 0 || token >= vocabulary())
      throw UsageError("token {} is not in the vocabulary of {}", token, vocabulary());
    text += text_.tokens[static_cast<std::size_t>(token)];
  }
  return text;
}

std::vector<std::int64_t> Bpe::encode_with(const WordSplitter& added, const WordSplitter& words,
                                           std::string_view text) const {
  std::string changed;
  if (normalizes()) text = changed = normalized(added, text, true);
  std::vector<std::int64_t> tokens;
  add_words(words, text, text.npos, true, tokens);
  return tokens;
}

std::string Bpe::normalized(const WordSplitter& added, std::string_view text, bool begins) const {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  const auto add = [&](std::string_view piece, bool is_added) {
    const std::size_t before = out.size();
    append_normal(is_added ? NormalForm::none : text_.form, piece, out);
    if (begins && !is_added && text_.adds_prefix_space && out[before] != ' ') out.insert(before, " ");
    begins = is_added;
  };
  added.split(scratch().matcher, text, text.npos, true, add, [&](char byte) { out += byte; });
  return out;
}

std::size_t Bpe::encode_until(std::string_view text, std::size_t stop, bool ends,
                              std::vector<std::int64_t>& tokens) const {
  // Words are short: little of what follows `stop` is needed, and patterns would search all of it.
  constexpr std::size_t margin_bytes = 4096;
  std::size_t at = 0;
  for (std::size_t end = std::min(text.size(), stop + margin_bytes);; end = text.size()) {
    const bool is_whole = end == text.size();
    at += add_words(document_words_, text.substr(at, end - at), stop - at, ends && is_whole, tokens);
    if (at >= stop || is_whole) return at;
  }
}

std::size_t Bpe::add_words(const WordSplitter& splitter, std::string_view text, std::size_t stop, bool ends,
                           std::vector<std::int64_t>& tokens) const {
  Scratch& own = scratch();
  const auto add = [&](std::string_view word, bool is_added) {
    if (is_added)
      tokens.push_back(added_.find(word)->second);
    else
      add_word(word, own, tokens);
  };
  return splitter.split(own.matcher, text, stop, ends, add,
                        [&](char byte) { tokens.push_back(bytes_[static_cast<unsigned char>(byte)]); });
}

void Bpe::add_word(std::string_view word, Scratch& scratch, std::vector<std::int64_t>& tokens) const {
  check_word(word);
  KnownWord* known = nullptr;
  if (word.size() <= KnownWord::max_bytes) {
    known = &scratch.known[XXH3_64bits(word.data(), word.size()) & (scratch.known.size() - 1)];
    if (known->size == word.size() && std::memcmp(known->bytes.data(), word.data(), word.size()) == 0) {
      tokens.insert(tokens.end(), known->ids.begin(), known->ids.begin() + known->tokens);
      return;
    }
  }
  const std::size_t before = tokens.size();
  const auto whole = text_.ignores_merges ? text_.words.find(word) : text_.words.end();
  if (whole != text_.words.end()) {
    tokens.push_back(whole->second);
  } else {
    scratch.bytes.clear();
    for (const char byte : word) scratch.bytes.push_back(bytes_[static_cast<unsigned char>(byte)]);
    scratch.joiner.join(scratch.bytes, merges_, [&](Id token) { tokens.push_back(token); });
  }
  if (!known || tokens.size() - before > KnownWord::max_tokens) return;
  known->size = static_cast<std::uint8_t>(word.size());
  known->tokens = static_cast<std::uint8_t>(tokens.size() - before);
  std::ranges::copy(word, known->bytes.begin());
  for (std::size_t i = before; i < tokens.size(); ++i) known->ids[i - before] = static_cast<Id>(tokens[i]);
}

}  // namespace bpe

void check_word(std::string_view word) {
  if (word.size() > std::size_t{1} << 20)
    throw DataError("a word of {} bytes, which begins with {}: is it text?", word.size(),
                    quote(word.substr(0, 20)));
}

void register_bpe(Tokenizers& registry) { registry.add<bpe::Bpe>("bpe"); }

}  // namespace lockstep::data
