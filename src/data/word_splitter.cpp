#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/word_splitter.h"

#include <pcre2.h>

#include <new>
#include <utility>

#include "base/text.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

// A pattern that needs more for one match is refused: it would take seconds, or gigabytes.
constexpr std::uint32_t max_matches = 20'000'000, max_depth = 100'000, max_heap_kib = 256 << 10;
constexpr std::size_t max_stack_bytes = std::size_t{64} << 20;

std::string message_of(int error) {
  std::string text(256, '\0');
  const int length = pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text.data()), text.size());
  text.resize(length < 0 ? 0 : static_cast<std::size_t>(length));
  return text;
}

std::size_t character_bytes(unsigned char first) {
  return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

}  // namespace

struct WordSplitter::Step : SplitStep {
  explicit Step(SplitStep step) : SplitStep(std::move(step)) {
    int error = 0;
    PCRE2_SIZE at = 0;
    code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr));
    if (!code)
      throw DataError("{}: pattern {}: {} (at byte {})", name, quote(pattern), message_of(error), at);
    std::uint32_t behind = 0;
    pcre2_pattern_info(code.get(), PCRE2_INFO_MAXLOOKBEHIND, &behind);
    if (behind > 0)
      throw DataError("{}: pattern {}: looks behind (by (?<, ^ or \\b), which is not supported", name,
                      quote(pattern));
    // Where there is no just-in-time compiler, matches are slower.
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  }

  struct Free {
    void operator()(pcre2_code* pattern) const { pcre2_code_free(pattern); }
  };
  std::unique_ptr<pcre2_code, Free> code;
};

WordSplitter::WordSplitter(std::vector<SplitStep> steps) {
  for (SplitStep& step : steps) steps_.emplace_back(std::move(step));
}

WordSplitter::~WordSplitter() = default;

WordSplitter::Matcher::Matcher()
    : data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(64 << 10, max_stack_bytes, nullptr)) {
  if (!data_ || !context_) throw std::bad_alloc();
  pcre2_set_match_limit(context_, max_matches);
  pcre2_set_depth_limit(context_, max_depth);
  pcre2_set_heap_limit(context_, max_heap_kib);
  if (stack_) pcre2_jit_stack_assign(context_, nullptr, stack_);
}

WordSplitter::Matcher::~Matcher() {
  pcre2_jit_stack_free(stack_);
  pcre2_match_context_free(context_);
  pcre2_match_data_free(data_);
}

bool WordSplitter::keeps(std::size_t step) const { return steps_[step].keeps; }

std::size_t WordSplitter::steps() const { return steps_.size(); }

WordSplitter::Found WordSplitter::find(std::size_t step, Matcher& matcher, std::string_view text,
                                       std::size_t from, bool ends) const {
  const Step& one = steps_[step];
  while (from < text.size()) {
    const int got =
        pcre2_match(one.code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                    PCRE2_NO_UTF_CHECK | (ends ? 0u : PCRE2_PARTIAL_HARD), matcher.data_, matcher.context_);
    if (got == PCRE2_ERROR_NOMATCH) break;
    const PCRE2_SIZE* const match = pcre2_get_ovector_pointer(matcher.data_);
    if (got == PCRE2_ERROR_PARTIAL) return {Found::partial, match[0], text.size()};
    if (got < 0)
      throw DataError("{}: pattern {}: PCRE2 gives up: {}", one.name, quote(one.pattern), message_of(got));
    if (match[1] > match[0]) return {Found::match, match[0], match[1]};
    from = match[1] + character_bytes(static_cast<unsigned char>(text[std::min(match[1], text.size() - 1)]));
  }
  return {Found::none};
}

}  // namespace lockstep::data
