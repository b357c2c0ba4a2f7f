// Telling images, text and checkpoints apart.
#include "data/contents.h"

#include <fmt/ranges.h>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

bool is_checkpoint(const hdf5::File& file) {
  return file.has_attribute("format") && file.is_text_attribute("format") &&
         file.text_attribute("format") == "lockstep";
}

const char* describe(const hdf5::File& file) {
  if (is_checkpoint(file)) return "a checkpoint";
  if (file.exists("/tokens")) return "a text data file";
  if (file.exists("/x")) return "a data file of images";
  return "no data file";
}

hdf5::Dataset open_or_explain(const hdf5::File& file, const char* name, const char* needed) {
  if (!file.exists(name)) {
    throw DataError("{}: {} is missing: this is {}, but {}", file.file_path(), name, describe(file), needed);
  }
  return file.open_dataset(name);
}

}  // namespace

hdf5::Dataset open_images(const hdf5::File& file) {
  return open_or_explain(file, "/x", "images are needed (lockstep prepare csv, idx or cifar)");
}

hdf5::Dataset open_tokens(const hdf5::File& file) {
  return open_or_explain(file, "/tokens", "text is needed (lockstep prepare text)");
}

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
