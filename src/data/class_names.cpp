// Names of classes as one text.
#include "data/class_names.h"

#include <fmt/ranges.h>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep::data {

std::vector<std::string> class_names_of(const hdf5::Dataset& y) {
  std::vector<std::string> names;
  std::string text;
  try {
    if (y.has_attribute("classes")) text = y.text_attribute("classes");
  } catch (const DataError&) {
    return names;  // files of others may use the word as they like
  }
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = rest.find('\n');
    names.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  }
  return names;
}

void store_class_names(hdf5::Dataset& y, const std::vector<std::string>& names) {
  y.set_attribute("classes", fmt::format("{}", fmt::join(names, "\n")));
}

}  // namespace lockstep::data
