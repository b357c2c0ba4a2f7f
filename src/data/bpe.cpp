#include "lockstep/data/bpe.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "base/text.h"
#include "data/bpe_text.h"
#include "data/unicode.h"
#include "data/word_splitter.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace bpe {

using Id = BpeText::Id;

/// A merge of a longer word would take gigabytes.
constexpr std::size_t max_word_bytes = std::size_t{1} << 20;

/// Two tokens and what they become, by the hash of both: open addressing.
class Merges {
 public:
  struct Merge {
    std::uint64_t pair = free;
    Id rank = 0, token = 0;
  };

  explicit Merges(std::size_t count) {
    std::size_t slots = 16;
    while (slots < 2 * count) slots *= 2;
    slots_.resize(slots);
  }
  /// False if there is one of this pair.
  bool add(Id left, Id right, Id rank, Id token) {
    Merge& slot = slots_[slot_of(pair_of(left, right))];
    if (slot.pair != free) return false;
    slot = {pair_of(left, right), rank, token};
    return true;
  }
  const Merge* find(Id left, Id right) const {
    const Merge& slot = slots_[slot_of(pair_of(left, right))];
    return slot.pair == free ? nullptr : &slot;
  }

 private:
  static constexpr std::uint64_t free = ~std::uint64_t{0};
  static std::uint64_t pair_of(Id left, Id right) { return std::uint64_t{left} << 32 | right; }
  std::size_t slot_of(std::uint64_t pair) const {
    std::size_t slot = (pair * 0x9E3779B97F4A7C15u) >> 20;
    while (slots_[slot & (slots_.size() - 1)].pair != pair && slots_[slot & (slots_.size() - 1)].pair != free)
      ++slot;
    return slot & (slots_.size() - 1);
  }

  std::vector<Merge> slots_;
};

/// Joins the bytes of a word: the merge of the lowest rank first, of equal ones the leftmost.
class Joiner {
 public:
  void join(std::span<const Id> tokens, const Merges& merges) {
    symbols_.clear();
    for (const Id token : tokens) {
      const auto at = static_cast<std::int32_t>(symbols_.size());
      symbols_.push_back({token, at - 1, at + 1});
    }
    symbols_.back().next = -1;
    queue_.clear();
    for (std::int32_t i = 0; i + 1 < std::ssize(symbols_); ++i) consider(i, merges);
    std::ranges::make_heap(queue_, later);
    while (!queue_.empty()) {
      const Waiting top = queue_.front();
      std::ranges::pop_heap(queue_, later);
      queue_.pop_back();
      Symbol& left = symbols_[static_cast<std::size_t>(top.at)];
      if (left.token != top.left || left.next < 0) continue;
      const Symbol right = symbols_[static_cast<std::size_t>(left.next)];
      if (right.token != top.right) continue;
      symbols_[static_cast<std::size_t>(left.next)].token = gone;
      left = {top.token, left.previous, right.next};
      if (right.next >= 0) {
        symbols_[static_cast<std::size_t>(right.next)].previous = top.at;
        if (consider(top.at, merges)) std::ranges::push_heap(queue_, later);
      }
      if (left.previous >= 0 && consider(left.previous, merges)) std::ranges::push_heap(queue_, later);
    }
  }
  template <class Use>
  void for_each_token(const Use& use) const {
    for (std::int32_t i = 0; i >= 0; i = symbols_[static_cast<std::size_t>(i)].next)
      use(symbols_[static_cast<std::size_t>(i)].token);
  }

 private:
  struct Symbol {
    Id token;
    std::int32_t previous, next;  // -1: none
  };
  struct Waiting {
    Id rank;
    std::int32_t at;
    Id left, right, token;
  };
  static constexpr Id gone = ~Id{0};

  static bool later(const Waiting& a, const Waiting& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  }
  bool consider(std::int32_t at, const Merges& merges) {
    const Symbol& left = symbols_[static_cast<std::size_t>(at)];
    const Id right = symbols_[static_cast<std::size_t>(left.next)].token;
    const Merges::Merge* const merge = merges.find(left.token, right);
    if (merge) queue_.push_back({merge->rank, at, left.token, right, merge->token});
    return merge != nullptr;
  }

  std::vector<Symbol> symbols_;
  std::vector<Waiting> queue_;
};

/// The tokens of short words that a thread has met.
struct KnownWord {
  static constexpr std::size_t max_bytes = 30, max_tokens = 8;
  std::uint8_t size = 0, tokens = 0;
  std::array<char, max_bytes> bytes;
  std::array<Id, max_tokens> ids;
};

/// The memory of a thread.
struct Scratch {
  WordSplitter::Matcher matcher;
  Joiner joiner;
  std::vector<KnownWord> known{std::size_t{1} << 16};
  std::vector<Id> bytes;
};

}  // namespace bpe

struct Bpe::Impl {
  using Id = bpe::Id;
  using Scratch = bpe::Scratch;

  explicit Impl(const std::string& definition);

  /// A scratch that no other thread uses, for the life of the object.
  class Lease {
   public:
    explicit Lease(const Impl& impl) : impl_(impl) {
      const std::scoped_lock lock(impl.mutex);
      if (impl.scratches.empty()) return;
      scratch_ = std::move(impl.scratches.back());
      impl.scratches.pop_back();
    }
    ~Lease() {
      if (!scratch_) return;
      const std::scoped_lock lock(impl_.mutex);
      impl_.scratches.push_back(std::move(scratch_));
    }
    Scratch& operator*() {
      if (!scratch_) scratch_ = std::make_unique<Scratch>();
      return *scratch_;
    }

   private:
    const Impl& impl_;
    std::unique_ptr<Scratch> scratch_;
  };

  void add_word(std::string_view word, Scratch& scratch, std::vector<std::int64_t>& tokens) const;
  std::size_t add_words(const WordSplitter& splitter, Scratch& scratch, std::string_view text,
                        std::size_t stop, bool ends, std::vector<std::int64_t>& tokens) const;
  std::string normalized(const WordSplitter& added, std::string_view text, bool begins) const;
  std::vector<std::int64_t> encode(std::string_view text, bool is_prompt) const;

  std::string definition;
  BpeText parsed;
  BpeText::Ids added_ids;       // by the text of an added token
  std::array<Id, 256> bytes{};  // the tokens of single bytes
  bpe::Merges merges;
  // Of documents, and of prompts: with its special tokens.
  WordSplitter document_tokens, document_words, prompt_tokens, prompt_words;
  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Scratch>> scratches;
};

namespace {

std::vector<SplitStep> steps_of(const BpeText& parsed, bool is_prompt, bool splits_words) {
  std::vector<SplitStep> steps;
  std::vector<const BpeText::Added*> added;
  for (const BpeText::Added& token : parsed.added)
    if (is_prompt || !token.special) added.push_back(&token);
  // The longest of those that begin at a place.
  std::ranges::stable_sort(added, std::greater(), [](const auto* token) { return token->content.size(); });
  if (!added.empty()) {
    std::string pattern;
    for (const BpeText::Added* token : added)
      pattern += (pattern.empty() ? "" : "|") + literal_pattern(token->content);
    steps.push_back({.name = "added_tokens", .pattern = pattern, .keeps = true});
  }
  if (splits_words) std::ranges::copy(parsed.steps, std::back_inserter(steps));
  return steps;
}

}  // namespace

Bpe::Impl::Impl(const std::string& text)
    : definition(text),
      parsed(parse_bpe(text)),
      merges(parsed.merges.size()),
      document_tokens(steps_of(parsed, false, false)),
      document_words(steps_of(parsed, false, true)),
      prompt_tokens(steps_of(parsed, true, false)),
      prompt_words(steps_of(parsed, true, true)) {
  for (std::size_t byte = 0; byte < bytes.size(); ++byte) {
    const auto found = parsed.words.find(std::string(1, static_cast<char>(byte)));
    if (found == parsed.words.end())
      throw DataError("tokenizer: model.vocab lacks the byte {:#04x}: is it a byte-level vocabulary?", byte);
    bytes[byte] = found->second;
  }
  for (Id rank = 0; rank < parsed.merges.size(); ++rank) {
    const auto& [left, right] = parsed.merges[rank];
    const auto find = [&](const std::string& token) {
      const auto found = parsed.words.find(token);
      if (found == parsed.words.end())
        throw DataError("tokenizer: model.merges, number {}: {} is not in model.vocab", rank, quote(token));
      return found->second;
    };
    const Id token = find(left + right);
    // Of equal pairs the last one counts for Hugging Face, which no file has.
    if (!merges.add(find(left), find(right), rank, token))
      throw DataError("tokenizer: model.merges, number {}: it is there twice", rank);
  }
  for (const BpeText::Added& token : parsed.added)
    added_ids.emplace(token.content, static_cast<Id>(token.id));
  parsed.merges = {};
}

void Bpe::Impl::add_word(std::string_view word, Scratch& scratch, std::vector<std::int64_t>& tokens) const {
  if (word.size() > bpe::max_word_bytes)
    throw DataError("{} bytes without the end of a word, beginning with {}: is it text?", word.size(),
                    quote(word.substr(0, 20)));
  bpe::KnownWord* known = nullptr;
  if (word.size() <= bpe::KnownWord::max_bytes) {
    known = &scratch.known[XXH3_64bits(word.data(), word.size()) & (scratch.known.size() - 1)];
    if (known->size == word.size() && std::memcmp(known->bytes.data(), word.data(), word.size()) == 0) {
      tokens.insert(tokens.end(), known->ids.begin(), known->ids.begin() + known->tokens);
      return;
    }
  }
  const std::size_t before = tokens.size();
  const auto whole = parsed.ignores_merges ? parsed.words.find(word) : parsed.words.end();
  if (whole != parsed.words.end()) {
    tokens.push_back(whole->second);
  } else {
    scratch.bytes.clear();
    for (const char byte : word) scratch.bytes.push_back(bytes[static_cast<unsigned char>(byte)]);
    scratch.joiner.join(scratch.bytes, merges);
    scratch.joiner.for_each_token([&](Id token) { tokens.push_back(token); });
  }
  const std::size_t count = tokens.size() - before;
  if (!known || count > bpe::KnownWord::max_tokens) return;
  known->size = static_cast<std::uint8_t>(word.size());
  known->tokens = static_cast<std::uint8_t>(count);
  std::ranges::copy(word, known->bytes.begin());
  std::transform(tokens.begin() + static_cast<std::ptrdiff_t>(before), tokens.end(), known->ids.begin(),
                 [](std::int64_t token) { return static_cast<Id>(token); });
}

std::size_t Bpe::Impl::add_words(const WordSplitter& splitter, Scratch& scratch, std::string_view text,
                                 std::size_t stop, bool ends, std::vector<std::int64_t>& tokens) const {
  constexpr std::size_t max_character_bytes = 4;
  const auto add = [&](std::string_view word, bool is_added) {
    if (is_added)
      tokens.push_back(added_ids.find(word)->second);
    else
      add_word(word, scratch, tokens);
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t valid_end = at + valid_bytes(text.substr(at));
    // A character may be cut at the end of the text.
    const bool closed = ends || text.size() - valid_end >= max_character_bytes;
    if (valid_end > at) {
      const std::size_t done =
          at + splitter.split(scratch.matcher, text.substr(at, valid_end - at), stop - at, closed, add);
      if (done < valid_end || done >= stop) return done;
      at = done;
    }
    if (at == text.size() || !closed) return at;
    tokens.push_back(bytes[static_cast<unsigned char>(text[at++])]);
    if (at >= stop) return at;
  }
  return text.size();
}

std::string Bpe::Impl::normalized(const WordSplitter& added, std::string_view text, bool begins) const {
  Lease own(*this);
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  const auto add = [&](std::string_view piece, bool is_added) {
    const std::size_t before = out.size();
    if (is_added)
      out += piece;
    else
      append_normal(parsed.form, piece, out);
    if (begins && !is_added && parsed.adds_prefix_space && out[before] != ' ') out.insert(before, " ");
    begins = is_added;
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t valid = valid_bytes(text.substr(at));
    added.split((*own).matcher, text.substr(at, valid), text.npos, true, add);
    at += valid;
    if (at < text.size()) out += text[at++];
  }
  return out;
}

std::vector<std::int64_t> Bpe::Impl::encode(std::string_view text, bool is_prompt) const {
  std::string changed;
  if (parsed.normalizes()) {
    changed = normalized(is_prompt ? prompt_tokens : document_tokens, text, true);
    text = changed;
  }
  std::vector<std::int64_t> tokens;
  Lease own(*this);
  add_words(is_prompt ? prompt_words : document_words, *own, text, text.npos, true, tokens);
  return tokens;
}

Bpe::Bpe(const std::string& text) : impl_(std::make_unique<Impl>(text)) {}

Bpe::~Bpe() = default;

std::int64_t Bpe::vocabulary() const { return std::ssize(impl_->parsed.tokens); }

std::vector<std::int64_t> Bpe::encode(std::string_view text) const { return impl_->encode(text, false); }

std::vector<std::int64_t> Bpe::encode_prompt(std::string_view text) const {
  return impl_->encode(text, true);
}

std::string Bpe::decode(std::span<const std::int64_t> tokens) const {
  std::string text;
  for (const std::int64_t token : tokens) {
    if (token < 0 || token >= vocabulary())
      throw UsageError("token {} is not in the vocabulary of {}", token, vocabulary());
    text += impl_->parsed.tokens[static_cast<std::size_t>(token)];
  }
  return text;
}

std::string Bpe::text() const { return impl_->definition; }

std::int64_t Bpe::end_of_document() const { return impl_->parsed.end_of_document; }

std::string Bpe::normalize(std::string_view text, bool begins) const {
  return impl_->normalized(impl_->document_tokens, text, begins);
}

bool Bpe::normalizes() const { return impl_->parsed.normalizes(); }

std::size_t Bpe::encode_until(std::string_view text, std::size_t stop, bool ends,
                              std::vector<std::int64_t>& tokens) const {
  // Words are short: little of what follows `stop` is needed, and patterns would search all of it.
  constexpr std::size_t margin_bytes = 4096;
  Impl::Lease own(*impl_);
  std::size_t at = 0;
  for (std::size_t end = std::min(text.size(), stop + margin_bytes);; end = text.size()) {
    const bool is_whole = end == text.size();
    at += impl_->add_words(impl_->document_words, *own, text.substr(at, end - at), stop - at,
                           ends && is_whole, tokens);
    if (at >= stop || is_whole) return at;
  }
}

}  // namespace lockstep::data
