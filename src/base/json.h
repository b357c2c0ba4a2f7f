// JSON as text. Its strings may have any bytes, as names of files need not be UTF-8.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/text.h"
#include "lockstep/base/error.h"

namespace lockstep {

/// On one line, or indented. Invalid UTF-8 becomes U+FFFD.
inline std::string json_text(const nlohmann::json& value, int indent = -1) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Parses JSON of another program. DataError "WHERE: ..." if it is damaged, or has more levels than any use.
inline nlohmann::json parsed_json(std::string_view text, const std::string& where) {
  constexpr int max_depth = 64;
  try {
    return nlohmann::json::parse(text, [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
      if (depth > max_depth) throw DataError("{}: JSON of more than {} levels", where, max_depth);
      return true;
    });
  } catch (const nlohmann::json::exception& error) {
    throw DataError("{}: is no JSON: {}", where, on_one_line(error.what()));
  }
}

}  // namespace lockstep
