#include "checkpoint/fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "lockstep/base/names.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::size_t most_names = 8;  // of one kind, in one line: those behind them are seldom news

struct Problems {
  std::vector<std::string> missing, unexpected, shapes, dtypes, collisions;
};

bool loads_as(std::string_view dtype, DType target, Conversion conversion) {
  if (dtype == to_string(target)) return true;
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), dtype) != names.end();
  };
  const bool is_byte = is_one_of({"int8", "uint8"}), is_short = is_byte || is_one_of({"int16", "uint16"});
  switch (target) {
    case DType::float64:
      return is_short || is_one_of({"float32", "float16", "bfloat16", "int32", "uint32"});
    case DType::float32:
      return is_short || is_one_of({"float16", "bfloat16"}) ||
             (conversion == Conversion::rounding && dtype == "float64");
    case DType::int64:
      return is_short || is_one_of({"int32", "uint32"});
    case DType::int32:
      return is_short;
    case DType::bfloat16:
    case DType::float16:
    case DType::uint8:
      break;
  }
  return false;
}

std::string text_of(std::span<const std::int64_t> extents) {
  return fmt::format("[{}]", fmt::join(extents, ", "));
}

bool has_shape(const StoredTensor& array, std::span<const std::int64_t> extents) {
  if (!array.transposed) return std::ranges::equal(array.shape, extents);
  return std::equal(array.shape.rbegin(), array.shape.rend(), extents.begin(), extents.end());
}

void fit_group(std::span<const StoredTensor> stored, const Wanted& wanted, Conversion conversion, Fit& result,
               Problems& problems) {
  const auto full = [&](std::string_view name) {
    return fmt::format("{}{}{}", wanted.group, wanted.group.empty() ? "" : "/", name);
  };
  struct Found {
    std::size_t index;
    bool used;
  };
  std::unordered_map<std::string, Found> by_name;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (stored[i].group != wanted.group || stored[i].ignored) continue;
    const auto [place, is_new] =
        by_name.try_emplace(std::string(strip_wrapper_prefix(stored[i].name)), Found{i, false});
    if (!is_new) {
      problems.collisions.push_back(
          fmt::format("{} and {}", full(stored[place->second.index].name), full(stored[i].name)));
    }
  }
  for (const NamedTensor& tensor : wanted.tensors) {
    const auto found = by_name.find(std::string(strip_wrapper_prefix(tensor.name)));
    if (found == by_name.end()) {
      problems.missing.push_back(full(tensor.name));
      continue;
    }
    found->second.used = true;
    const StoredTensor& array = stored[found->second.index];
    const auto extents = tensor.shape().extents();
    if (!has_shape(array, extents)) {
      problems.shapes.push_back(fmt::format("{} is {}{} in the file, {} here", full(tensor.name),
                                            text_of(array.shape),
                                            array.transposed ? ", to be transposed," : "", text_of(extents)));
    } else if (!loads_as(array.dtype, tensor.value.dtype(), conversion)) {
      problems.dtypes.push_back(fmt::format("{} is {} in the file, {} here", full(tensor.name), array.dtype,
                                            to_string(tensor.value.dtype())));
    } else {
      result.pairs.push_back({found->second.index, tensor});
    }
  }
  if (wanted.subset) return;
  // In the file's order, for a text that is the same on every rank.
  for (const StoredTensor& array : stored) {
    if (array.group != wanted.group || array.ignored) continue;
    const Found& found = by_name.at(std::string(strip_wrapper_prefix(array.name)));
    if (!found.used && &stored[found.index] == &array) problems.unexpected.push_back(full(array.name));
  }
}

}  // namespace

Fit fit(std::span<const StoredTensor> stored, std::span<const Wanted> wanted, Conversion conversion) {
  Fit result;
  Problems problems;
  for (const Wanted& group : wanted) fit_group(stored, group, conversion, result, problems);
  const auto say = [&](std::string_view what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    const std::size_t shown = std::min(names.size(), most_names);
    std::string text = fmt::format("{}: {}", what, fmt::join(names.begin(), names.begin() + shown, ", "));
    if (shown < names.size()) text += fmt::format(" ... and {} more", names.size() - shown);
    result.problems.push_back(std::move(text));
  };
  say("missing", problems.missing);
  say("unexpected", problems.unexpected);
  say("wrong shape", problems.shapes);
  say("wrong type", problems.dtypes);
  say("the same name but for wrapper prefixes", problems.collisions);
  result.ambiguous = !problems.collisions.empty();
  return result;
}

}  // namespace lockstep::checkpoint
