// JSON as text, whatever bytes its strings have: names of files need not be UTF-8.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lockstep {

/// On one line, or indented. Bytes that are no UTF-8 become U+FFFD.
inline std::string json_text(const nlohmann::json& value, int indent = -1) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace lockstep
