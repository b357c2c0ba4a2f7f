// WordSplitter: cuts a text into words at the matches of regular expressions (PCRE2), piece by piece of a
// text of any length.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/unicode.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace lockstep::data {

/// A step of a WordSplitter: each piece is cut at the matches of the pattern. These and what is between them
/// are the pieces of the next step.
struct SplitStep {
  std::string name{};     ///< for errors: "pre_tokenizer Split"
  std::string pattern{};  ///< of PCRE2: UTF-8, with Unicode properties
  bool keeps = false;     ///< a match is a word of its own kind, which no later step cuts
};

/// Steps one after another; the pieces of the last one are words. Several threads may use one at once, each
/// with a Matcher.
class WordSplitter {
 public:
  /// DataError, with the pattern, if it is no regular expression, or looks behind the place of a match.
  explicit WordSplitter(std::vector<SplitStep> steps);
  ~WordSplitter();

  /// The memory of a thread.
  class Matcher {
   public:
    Matcher();
    ~Matcher();

   private:
    friend class WordSplitter;
    pcre2_real_match_data_8* data_;
    pcre2_real_match_context_8* context_;
    pcre2_real_jit_stack_8* stack_;
  };

  /// Calls use(word, kept) for the words of valid UTF-8, until one ends at or behind `stop` where splitting
  /// may begin anew. Returns where the last one ends. ends: whether the text ends with `text`; if it does
  /// not, words that the following text could change are left out. DataError if a pattern exceeds PCRE2's
  /// limits.
  template <class Use>
  std::size_t split(Matcher& matcher, std::string_view text, std::size_t stop, bool ends,
                    const Use& use) const {
    return Split<Use>{*this, matcher, text, stop, use}.piece(0, 0, text.size(), ends, true);
  }
  /// The same for a text of any bytes: calls use_byte(byte) for those that are not UTF-8. Valid UTF-8 between
  /// them is split as a text by itself.
  template <class Use, class UseByte>
  std::size_t split(Matcher& matcher, std::string_view text, std::size_t stop, bool ends, const Use& use,
                    const UseByte& use_byte) const {
    constexpr std::size_t max_character_bytes = 4;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t valid_end = at + valid_bytes(text.substr(at));
      // A character may be cut at the end of the text.
      const bool closed = ends || text.size() - valid_end >= max_character_bytes;
      at += split(matcher, text.substr(at, valid_end - at), stop - at, closed, use);
      if (at < valid_end || at >= stop || at == text.size() || !closed) return at;
      use_byte(text[at++]);
      if (at >= stop) return at;
    }
    return text.size();
  }

 private:
  struct Step;
  struct Found {
    enum {
      match,
      none,
      partial
    } kind;  // partial: a match may begin at `begin`, the end of the text hides it
    std::size_t begin = 0, end = 0;
  };

  /// A match that is not empty, in the first `end` bytes of the text, at or behind `from`.
  Found find(std::size_t step, Matcher& matcher, std::string_view text, std::size_t from, bool ends) const;
  bool keeps(std::size_t step) const;
  std::size_t steps() const;

  template <class Use>
  struct Split {
    const WordSplitter& splitter;
    Matcher& matcher;
    std::string_view text;
    std::size_t stop;
    const Use& use;

    /// Of text [begin, end) by the steps from `step` on. closed: the piece ends there. resumable: splitting
    /// may begin anew in it, at a border between pieces of this step: no match of an earlier step holds it.
    /// Returns where the last word ends.
    std::size_t piece(std::size_t step, std::size_t begin, std::size_t end, bool closed,
                      bool resumable) const {
      if (begin == end) return end;
      if (step == splitter.steps()) {
        if (closed) use(text.substr(begin, end - begin), false);
        return closed ? end : begin;
      }
      for (std::size_t at = begin;;) {
        const Found found = splitter.find(step, matcher, text.substr(begin, end - begin), at - begin, closed);
        if (found.kind != Found::match) {
          const bool none = found.kind == Found::none;
          return piece(step + 1, at, none ? end : begin + found.begin, closed && none, resumable);
        }
        const std::size_t first = begin + found.begin, last = begin + found.end;
        if (first > at) {
          at = piece(step + 1, at, first, true, resumable);
          if (at < first || (resumable && at >= stop)) return at;
        }
        if (splitter.keeps(step))
          use(text.substr(first, last - first), true);
        else
          piece(step + 1, first, last, true, false);
        at = last;
        if (at == end || (resumable && at >= stop)) return at;
      }
    }
  };

  std::vector<Step> steps_;
};

}  // namespace lockstep::data
