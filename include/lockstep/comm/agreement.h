// What ranks tell each other: errors, and structured values.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "lockstep/comm/host_group.h"

namespace lockstep::comm {
/// Runs `action` on every rank, then compares (collective). If it threw anywhere, every rank throws an Error
/// with the same text and code: those of the lowest failing rank, "rank R: " in front if only some ranks
/// failed and "; and N more ranks" behind if the texts differ. The action itself must not leave its peers
/// inside a collective; what it started must be over when it throws.
void run_on_all(HostGroup& group, const std::function<void()>& action);

/// Every rank's value, in rank order (collective). Numbers arrive bit for bit, infinite ones and NaN too.
std::vector<nlohmann::json> all_gather_json(HostGroup& group, const nlohmann::json& mine);

/// The same for rank `root` alone; the others get an empty vector. Throws UsageError if there is no such
/// rank.
std::vector<nlohmann::json> gather_json(HostGroup& group, const nlohmann::json& mine, int root);

}  // namespace lockstep::comm
