// What a page holds.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "report/document.h"

namespace lockstep::test {

inline std::size_t count_of(const std::string& text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// The document that its script draws.
inline nlohmann::json data_of(const std::string& page) {
  const std::string start = "id=\"data\">";
  const std::size_t begin = page.find(start) + start.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

/// The points of a curve, as the script reads them.
inline report::Points drawn(const nlohmann::json& curve) {
  report::Points points;
  double x = 0, y = 0;
  for (const nlohmann::json& difference : curve["x"]) points.x.push_back(x += difference.get<double>());
  for (const nlohmann::json& difference : curve["y"]) {
    const double place =
        curve["low"].get<double>() + (y += difference.get<double>()) * curve["unit"].get<double>();
    points.y.push_back(curve["log"] ? std::pow(10, place) : place);
  }
  return points;
}

}  // namespace lockstep::test
