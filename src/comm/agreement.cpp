#include "lockstep/comm/agreement.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

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

/// Throws the class of the code, so that callers can catch it.
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
  std::vector<Record> records(group.size());
  group.all_gather(&record, sizeof record, records.data());
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

std::uint64_t bits_of_any(HostGroup& group, std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather(&mine, sizeof mine, all.data());
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
