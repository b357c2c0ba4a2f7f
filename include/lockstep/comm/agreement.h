// Errors that all ranks agree on, requests of any rank, and gathers of JSON values.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
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

/// For destructors that are collective: all ranks wait for each other, unless an exception unwinds. False if a
/// rank calls something else, which a later collective throws.
bool meet_at_end(HostGroup& group, const char* phrase);

/// The bits that are set on any rank (collective).
std::uint64_t bits_of_any(HostGroup& group, std::uint64_t mine);

/// Every rank's value, in rank order (collective). Numbers arrive bit for bit, infinite ones and NaN too.
std::vector<nlohmann::json> all_gather_json(HostGroup& group, const nlohmann::json& mine);

}  // namespace lockstep::comm
