#include "lockstep/optim/groups.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>

#include "lockstep/base/error.h"
#include "lockstep/base/names.h"

namespace lockstep::optim {
namespace {

constexpr std::string_view blanks = " \t";

/// The next word of `text`, which is cut from it; empty at the end.
std::string_view next_word(std::string_view& text) {
  const std::size_t begin = std::min(text.find_first_not_of(blanks), text.size());
  text.remove_prefix(begin);
  const std::size_t end = std::min(text.find_first_of(blanks), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  return word;
}

double number_in(std::string_view word, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size())
    throw UsageError("parameter group '{}': '{}' is not a number; write PATTERN LR_FACTOR DECAY_FACTOR", text,
                     word);
  return value;
}

void check_factor(double factor, std::string_view which, const ParamGroup& group) {
  if (!std::isfinite(factor) || factor < 0)
    throw UsageError("parameter group '{}': {} {} is not a finite number of at least 0", group.pattern, which,
                     factor);
}

}  // namespace

Decay decay_named(std::string_view name) {
  if (name == "matrices") return Decay::matrices;
  if (name == "all") return Decay::all;
  throw UsageError("'{}' is no decay rule: use matrices or all", name);
}

ParamGroup parse_param_group(std::string_view text) {
  std::string_view rest = text;
  const std::string_view pattern = next_word(rest), lr = next_word(rest), decay = next_word(rest);
  if (decay.empty() || !next_word(rest).empty())
    throw UsageError("parameter group '{}' is not of the form PATTERN LR_FACTOR DECAY_FACTOR", text);
  ParamGroup group{std::string(pattern), number_in(lr, text), number_in(decay, text)};
  check_factor(group.lr_factor, "learning-rate factor", group);
  check_factor(group.decay_factor, "decay factor", group);
  return group;
}

std::vector<ParamFactors> factors_of(std::span<Param* const> params, Decay decay,
                                     std::span<const ParamGroup> groups) {
  for (const ParamGroup& group : groups) {
    check_factor(group.lr_factor, "learning-rate factor", group);
    check_factor(group.decay_factor, "decay factor", group);
  }
  std::vector<bool> taken(groups.size(), false);
  std::vector<ParamFactors> factors;
  factors.reserve(params.size());
  for (const Param* const param : params) {
    const bool decays = decay == Decay::all || param->value.shape().rank() >= 2;
    ParamFactors found{.lr = 1, .decay = decays ? 1.0 : 0.0};
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!matches_pattern(groups[g].pattern, param->name)) continue;
      taken[g] = true;
      found.lr = groups[g].lr_factor;
      found.decay *= groups[g].decay_factor;
      break;
    }
    factors.push_back(found);
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (taken[g]) continue;
    for (const Param* const param : params)
      if (matches_pattern(groups[g].pattern, param->name))
        throw UsageError(
            "parameter group '{}' has no effect: earlier groups take every parameter it matches ('{}' is "
            "one)",
            groups[g].pattern, param->name);
    throw UsageError("parameter group '{}' matches no parameter of the model", groups[g].pattern);
  }
  return factors;
}

}  // namespace lockstep::optim
