// Errors that all ranks agree on, requests of any rank, and gathers of plain and JSON values.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/comm/host_group.h"

namespace lockstep::comm {

/// The text of a std::bad_alloc.
inline constexpr const char* out_of_memory = "out of memory; use a smaller batch or set train.micro_batches";

/// Runs `action` on every rank, then compares (collective). If it threw anywhere, every rank throws an Error
/// with the same text and code: those of the lowest failing rank, after "rank R: " if only some ranks failed
/// and followed by "; and N more ranks" if the texts differ. The action must not leave its peers inside a
/// collective.
void run_on_all(HostGroup& group, const std::function<void()>& action);

/// For collective destructors: all ranks wait for each other, unless an exception unwinds. False if a rank
/// calls something else; a later collective then throws.
bool meet_at_end(HostGroup& group, const char* phrase);

/// A line of text that differs between ranks.
struct Difference {
  std::string of_rank_0;     ///< "nothing" if the text has ended
  std::string of_others;     ///< the line of other ranks in its place
  std::vector<int> ranks;    ///< the ranks that have of_others
  std::string text() const;  ///< "'a 1' on rank 0, but 'a 2' on ranks 1, 3"
};
/// The first line in which a rank's text is not that of rank 0; none if all are equal. Collective; ranks send
/// the texts only if their digests differ.
std::optional<Difference> first_difference(HostGroup& group, const std::string& text);

/// "rank 2", "ranks 1, 3".
std::string ranks_text(std::span<const int> ranks);

/// The bits that are set on any rank (collective).
std::uint64_t bits_of_any(HostGroup& group, std::uint64_t mine);

/// Every rank's value, in rank order (collective). Values are copied bytewise.
template <class T>
std::vector<T> all_gather_values(HostGroup& group, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>);
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  group.all_gather(&mine, sizeof mine, all.data());
  return all;
}
/// Every rank's value, in rank order (collective). Numbers arrive bit for bit, infinite ones and NaN too.
std::vector<nlohmann::json> all_gather_json(HostGroup& group, const nlohmann::json& mine);

}  // namespace lockstep::comm
