// Structured values across ranks: the results of an evaluation, what a machine can do ...
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

/// Every rank's value, in rank order (collective). Numbers arrive bit for bit, infinite ones and NaN too.
std::vector<nlohmann::json> all_gather_json(Communicator& communicator, const nlohmann::json& mine);

/// The same for rank `root` alone; the others get an empty vector. Throws UsageError if there is no such
/// rank.
std::vector<nlohmann::json> gather_json(Communicator& communicator, const nlohmann::json& mine, int root);

}  // namespace lockstep::comm
