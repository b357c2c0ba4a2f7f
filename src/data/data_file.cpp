#include "data/data_file.h"

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
  return open_or_explain(file, "/x",
                         "images are needed (lockstep prepare csv, idx or cifar; arrays of other names: "
                         "data.fields = x:/NAME y:/NAME)");
}

hdf5::Dataset open_tokens(const hdf5::File& file) {
  return open_or_explain(file, "/tokens", "text is needed (lockstep prepare text)");
}

std::string shape_text(const hdf5::Dataset& dataset) {
  return fmt::format("[{}]", fmt::join(dataset.shape(), ", "));
}

std::vector<std::string> class_names_of(const hdf5::Dataset& y) {
  std::vector<std::string> names;
  std::string text;
  try {
    if (y.has_attribute("classes")) text = y.text_attribute("classes");
  } catch (const DataError&) {
    return names;  // files from elsewhere may use the name for something else
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

RowStore::RowStore(hdf5::File file, hdf5::Dataset dataset, DType as, std::int64_t& memory_left_bytes)
    : path_(file.file_path()),
      dtype_(as),
      rows_(dataset.rows()),
      row_bytes_(static_cast<std::size_t>(dataset.row_numel()) * bytes_of(as)) {
  dataset.check_stored();
  // Elements may be wider in memory than they are in the file.
  if (dataset.numel() > (std::int64_t{1} << 58)) {
    throw DataError("{}: {} claims {} elements, more than any machine could hold", path_, dataset.name(),
                    dataset.numel());
  }
  const std::size_t bytes = static_cast<std::size_t>(rows_) * row_bytes_;
  if (static_cast<std::int64_t>(bytes) <= memory_left_bytes) {
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    dataset.read(dtype_, {memory_.get(), bytes});
    memory_left_bytes -= static_cast<std::int64_t>(bytes);
  } else {
    file_ = std::make_unique<hdf5::File>(std::move(file));
    dataset_ = std::make_unique<hdf5::Dataset>(std::move(dataset));
  }
}

const std::byte* RowStore::load_rows(std::int64_t begin, std::int64_t count) const {
  const std::size_t bytes = static_cast<std::size_t>(count) * row_bytes_;
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  dataset_->read_rows(begin, count, dtype_, {scratch_.data(), bytes});
  return scratch_.data();
}

}  // namespace lockstep::data
