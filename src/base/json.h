// JSON as text. Its strings may have any bytes, as names of files need not be UTF-8.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lockstep {

/// On one line, or indented. Invalid UTF-8 becomes U+FFFD.
inline std::string json_text(const nlohmann::json& value, int indent = -1) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace lockstep
