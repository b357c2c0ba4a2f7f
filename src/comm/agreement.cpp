#include "lockstep/comm/agreement.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep::comm {
namespace {

struct Outcome {
  ExitCode code = ExitCode::done;
  std::string text;
  bool failed = false;
};

Outcome outcome_of(const std::function<void()>& action) {
  try {
    action();
    return {};
  } catch (const Error& error) {
    return {error.code(), error.what(), true};
  } catch (const std::bad_alloc&) {
    return {ExitCode::failure, out_of_memory, true};
  } catch (const std::exception& error) {
    return {ExitCode::failure, error.what(), true};
  } catch (...) {
    return {ExitCode::failure, "an exception of unknown type", true};
  }
}

/// Throws the exception class of the code, so that callers can catch it.
[[noreturn]] void throw_error(ExitCode code, const std::string& text) {
  switch (code) {
    case ExitCode::usage:
      throw UsageError("{}", text);
    case ExitCode::data:
      throw DataError("{}", text);
    case ExitCode::training:
      throw TrainingError("{}", text);
    case ExitCode::failure:
      throw FailureError("{}", text);
    default:
      throw Error(code, text);
  }
}

}  // namespace

void run_on_all(HostGroup& group, const std::function<void()>& action) {
  const Outcome mine = outcome_of(action);
  const NamedCall call(group, "calls run_on_all");

  struct Record {
    int failed;
    int code;
  };
  const Record record{mine.failed ? 1 : 0, static_cast<int>(mine.code)};
  const std::vector<Record> records = all_gather_values(group, record);
  const auto failed = [](const Record& other) { return other.failed != 0; };
  const auto first = std::find_if(records.begin(), records.end(), failed);
  if (first == records.end()) return;

  const std::vector<std::string> texts = group.all_gather_texts(mine.text);
  const auto failures = std::count_if(records.begin(), records.end(), failed);
  const auto first_rank = static_cast<std::size_t>(first - records.begin());
  bool texts_differ = false;
  for (std::size_t rank = first_rank; rank < texts.size(); ++rank) {
    texts_differ = texts_differ || (failed(records[rank]) && texts[rank] != texts[first_rank]);
  }
  std::string text = texts[first_rank];
  if (failures < group.size()) text = fmt::format("rank {}: {}", first_rank, text);
  if (texts_differ) text += fmt::format("; and {} more rank{}", failures - 1, failures == 2 ? "" : "s");
  throw_error(static_cast<ExitCode>(first->code), text);
}

bool meet_at_end(HostGroup& group, const char* phrase) {
  try {
    const NamedCall call(group, phrase);
    if (std::uncaught_exceptions() == 0) group.barrier();
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string ranks_text(std::span<const int> ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string Difference::text() const {
  return fmt::format("'{}' on rank 0, but '{}' on {}", of_rank_0, of_others, ranks_text(ranks));
}

std::optional<Difference> first_difference(HostGroup& group, const std::string& text) {
  const std::uint64_t digest = purpose_of(text);
  const std::vector<std::uint64_t> digests = all_gather_values(group, digest);
  if (std::ranges::count(digests, digest) == std::ssize(digests)) return std::nullopt;
  const std::vector<std::string> all = group.all_gather_texts(text);
  const std::vector<std::string_view> reference = lines_of(all[0]);
  std::optional<Difference> found;
  for (int rank = 1; rank < group.size(); ++rank) {
    const std::vector<std::string_view> lines = lines_of(all[static_cast<std::size_t>(rank)]);
    const auto [ours, theirs] = std::ranges::mismatch(reference, lines);
    if (ours == reference.end() && theirs == lines.end()) continue;
    const std::string_view here = ours == reference.end() ? "nothing" : *ours;
    const std::string_view there = theirs == lines.end() ? "nothing" : *theirs;
    if (!found) found = {std::string(here), std::string(there), {}};
    if (found->of_rank_0 == here && found->of_others == there) found->ranks.push_back(rank);
  }
  return found;
}

std::uint64_t bits_of_any(HostGroup& group, std::uint64_t mine) {
  const std::vector<std::uint64_t> all = all_gather_values(group, mine);
  return std::accumulate(all.begin(), all.end(), std::uint64_t{0}, std::bit_or<>());
}

std::vector<nlohmann::json> all_gather_json(HostGroup& group, const nlohmann::json& mine) {
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(mine);
  std::vector<nlohmann::json> values;
  for (const std::string& text : group.all_gather_texts(std::string(bytes.begin(), bytes.end())))
    values.push_back(nlohmann::json::from_cbor(text));
  return values;
}

}  // namespace lockstep::comm
