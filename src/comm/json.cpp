// Structured values travel as CBOR, which unlike text keeps every number as it is.
#include "lockstep/comm/json.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::comm {
namespace {

std::vector<std::string> gathered(Communicator& communicator, const nlohmann::json& mine) {
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(mine);
  return communicator.all_gather_texts(std::string(bytes.begin(), bytes.end()));
}

std::vector<nlohmann::json> values_of(const std::vector<std::string>& texts) {
  std::vector<nlohmann::json> values;
  values.reserve(texts.size());
  for (const std::string& text : texts) values.push_back(nlohmann::json::from_cbor(text));
  return values;
}

}  // namespace

std::vector<nlohmann::json> all_gather_json(Communicator& communicator, const nlohmann::json& mine) {
  return values_of(gathered(communicator, mine));
}

std::vector<nlohmann::json> gather_json(Communicator& communicator, const nlohmann::json& mine, int root) {
  if (root < 0 || root >= communicator.size()) {
    throw UsageError("gather on rank {}: no rank {} among {}", communicator.rank(), root,
                     communicator.size());
  }
  // These values are small: one round that all take part in beats a second protocol.
  const std::vector<std::string> texts = gathered(communicator, mine);
  if (communicator.rank() != root) return {};
  return values_of(texts);
}

}  // namespace lockstep::comm
