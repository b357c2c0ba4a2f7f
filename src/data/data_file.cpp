#include "data/data_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <span>
#include <string_view>

#include "base/progress.h"
#include "base/text.h"
#include "comm/node_memory.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::data {
namespace {

const char* describe(const hdf5::File& file) {
  if (text_of(file, "format") == "lockstep") return "a checkpoint";
  if (file.exists("/tokens")) return "a text data file";
  if (file.exists("/x")) return "a data file of images";
  return "not a data file";
}

hdf5::Dataset open_or_explain(const hdf5::File& file, const char* name, const char* needed) {
  if (!file.exists(name)) {
    throw DataError("{}: {} is missing: this is {}, but {}", file.file_path(), name, describe(file), needed);
  }
  return file.open_dataset(name);
}

/// DataError if an element equals a missing value by the netCDF attributes: a model would learn it as a
/// value.
void check_no_missing_values(const hdf5::Dataset& dataset) {
  std::vector<double> missing;
  for (const char* const attribute : {"_FillValue", "missing_value"})
    if (dataset.has_attribute(attribute) && dataset.attribute_dtype(attribute))
      for (const double value : dataset.doubles_attribute(attribute))
        if (!std::isnan(value))
          missing.push_back(dataset.dtype() == DType::float32 ? static_cast<double>(static_cast<float>(value))
                                                              : value);
  if (missing.empty() || !dataset.dtype() || dataset.numel() == 0) return;
  dataset.read_blocks(0, dataset.rows(), [&](std::int64_t first, std::span<const double> values) {
    const auto found = std::ranges::find_first_of(values, missing);
    if (found == values.end()) return true;
    throw DataError(
        "{}: row {} of {} holds {}, a missing value by the attribute _FillValue or missing_value: remove the "
        "sample, or replace the value and remove the attribute",
        dataset.file_path(), (first + (found - values.begin())) / dataset.row_numel(), dataset.name(),
        *found);
  });
}

struct stat status_of(const OpenFile& file) {
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) throw_system_error(errno, file.path(), "stat");
  return status;
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

std::string name_of_files(const std::string& first, std::size_t count) {
  return count == 1 ? first : fmt::format("{} and {} more", first, count - 1);
}

bool is_integers(const hdf5::Dataset& dataset) {
  return dataset.is_boolean() || (dataset.dtype() && !is_floating(*dataset.dtype()));
}

std::vector<std::string> names_of(const hdf5::Object& object, const char* attribute) {
  try {
    if (!object.has_attribute(attribute)) return {};
    std::vector<std::string> texts = object.texts_attribute(attribute);
    if (texts.size() != 1) {
      for (std::string& text : texts) std::ranges::replace(text, '\n', ' ');
      return texts;
    }
    std::vector<std::string> names;
    for (std::string_view line : lines_of(texts.front()))
      names.emplace_back(line.substr(0, line.size() - (line.ends_with('\r') ? 1 : 0)));
    const bool is_pickled = !names.empty() && names.front().starts_with("(lp");  // a list by PyTables
    return is_pickled ? std::vector<std::string>() : names;
  } catch (const DataError&) {  // files of other programs may use the attribute otherwise
    return {};
  }
}

std::string text_of(const hdf5::Object& object, const char* attribute) {
  return fmt::format("{}", fmt::join(names_of(object, attribute), ", "));
}

void store_names(hdf5::Dataset& array, const char* attribute, const std::vector<std::string>& names) {
  array.set_attribute(attribute, fmt::format("{}", fmt::join(names, "\n")));
}

namespace {

/// The largest finite |value| in some rows; in the first part of a large row.
double largest_in(const hdf5::Dataset& dataset) {
  constexpr std::int64_t max_rows = 64, max_elements = 1 << 20;
  if (!dataset.dtype() || dataset.numel() == 0) return 0;
  const std::int64_t count =
      std::min(dataset.rows(), std::clamp<std::int64_t>(max_elements / dataset.row_numel(), 1, max_rows));
  double largest = 0;
  for (std::int64_t i = 0; i < count; ++i)
    dataset.read_blocks(i * dataset.rows() / count, 1, [&](std::int64_t, std::span<const double> values) {
      for (const double value : values)
        if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
      return false;
    });
  return largest;
}

}  // namespace

FieldMeaning meaning_of(const hdf5::Dataset& dataset) {
  dataset.check_stored();
  check_no_missing_values(dataset);
  const std::string& file = dataset.file_path();
  const auto numbers = [&](const char* name) {
    return dataset.has_attribute(name) && dataset.attribute_dtype(name);
  };
  FieldMeaning meaning{.stored = {.dtype = dataset.dtype().value_or(DType::uint8),
                                  .shape = Shape(std::span<const std::int64_t>(dataset.shape()).subspan(1)),
                                  .largest = largest_in(dataset)}};
  if (numbers("mean") && numbers("std"))
    meaning.stored.named = {dataset.doubles_attribute("mean"), dataset.doubles_attribute("std")};
  std::string packing;
  for (const char* const name : {"scale_factor", "add_offset"})
    if (numbers(name))
      packing += fmt::format("{}{} {}", packing.empty() ? "" : ", ", name,
                             fmt::join(dataset.doubles_attribute(name), " "));
  meaning.scale = {meaning.stored, file};
  meaning.classes = {names_of(dataset, "classes"), file};
  if (auto names = names_of(dataset, "names"); std::ssize(names) == meaning.stored.shape.numel())
    meaning.names = {std::move(names), file};
  meaning.units = {text_of(dataset, "units"), file};
  meaning.packing = {packing, file};
  return meaning;
}

StoredFile::StoredFile(const std::string& path) : file(path, OpenFile::Mode::read), status(status_of(file)) {}

RowStore::RowStore(std::shared_ptr<const hdf5::File> file, hdf5::Dataset dataset, DType as,
                   std::int64_t& memory_left_bytes, StoredFiles& files)
    : path_(file->file_path()),
      dtype_(as),
      as_stored_(dataset.dtype() == as),
      rows_(dataset.rows()),
      row_bytes_(static_cast<std::size_t>(dataset.row_numel()) * bytes_of(as)) {
  std::set<std::string> paths = dataset.source_paths();
  paths.insert(path_);
  for (const std::string& path : paths) {
    std::shared_ptr<const StoredFile>& one = files[path];
    if (!one) one = std::make_shared<const StoredFile>(path);
    files_.push_back(one);
  }
  dataset.check_stored();
  // Elements may be wider in memory than in the file.
  if (dataset.numel() > (std::int64_t{1} << 58)) {
    throw DataError("{}: {} claims {} elements, which exceeds any machine's memory", path_, dataset.name(),
                    dataset.numel());
  }
  const std::size_t bytes = static_cast<std::size_t>(rows_) * row_bytes_;
  if (static_cast<std::int64_t>(bytes) <= memory_left_bytes) {
    memory_ = std::unique_ptr<std::byte[]>(new std::byte[bytes]);
    dataset.read(dtype_, {memory_.get(), bytes});
    check_files();
    files_.clear();
    memory_left_bytes -= static_cast<std::int64_t>(bytes);
  } else {
    file_ = std::move(file);
    if (as_stored_) raw_ = hdf5::RawRows::of(dataset);
    dataset_ = std::make_unique<hdf5::Dataset>(std::move(dataset));
  }
}

void StoredFile::check() const {
  const struct stat now = status_of(file), &then = status;
  const bool same_time =
      now.st_mtim.tv_sec == then.st_mtim.tv_sec && now.st_mtim.tv_nsec == then.st_mtim.tv_nsec;
  if (same_time && now.st_size == then.st_size) return;
  throw DataError(
      "{}: the file changed while the run reads it ({} bytes before, {} now): a run needs the same data to "
      "its end; restore the file, or start a new run",
      file.path(), then.st_size, now.st_size);
}

void RowStore::check_files() const {
  for (const std::shared_ptr<const StoredFile>& file : files_) file->check();
}

void RowStore::read_rows(std::int64_t begin, std::int64_t count, std::byte* out) const {
  const bool is_whole = !raw_ || raw_->read(begin, count, out);
  if (!raw_) dataset_->read_rows(begin, count, dtype_, {out, static_cast<std::size_t>(count) * row_bytes_});
  check_files();  // after the read: data read before a change is valid
  if (!is_whole)
    throw DataError("{}: the file ends before row {} of {}", path_, begin + count - 1, dataset_->name());
}

bool RowStore::hold_on_node(comm::HostGroup& world, std::int64_t& memory_left_bytes) {
  const std::int64_t bytes = in_memory() ? -1 : rows_ * static_cast<std::int64_t>(row_bytes_);
  const std::vector<std::int64_t> of_ranks = comm::all_gather_values(world, bytes);
  if (bytes < 0 || bytes > memory_left_bytes || std::ranges::count(of_ranks, bytes) < world.size())
    return false;
  std::shared_ptr<std::byte[]> memory = comm::allocate_on_node(world, static_cast<std::size_t>(bytes));
  if (!memory) return false;
  const auto first_row = [&](int rank) { return rows_ * rank / world.size(); };  // each rank reads its part
  comm::run_on_all(world, [&] {
    const std::int64_t begin = first_row(world.rank()), end = first_row(world.rank() + 1);
    // HDF5 unpacks a chunk for each call that reads of it, so it reads all at once.
    const std::int64_t rows_at_once =
        raw_ ? std::max<std::int64_t>(1, (1 << 26) / static_cast<std::int64_t>(row_bytes_)) : rows_;
    for (std::int64_t row = begin; row < end; row += rows_at_once) {
      const std::int64_t rows = std::min(rows_at_once, end - row);
      read_rows(row, rows, &memory[static_cast<std::size_t>(row) * row_bytes_]);
      progress::tick();
    }
  });
  std::vector<std::span<std::byte>> parts;
  for (int rank = 0; rank < world.size(); ++rank)
    parts.emplace_back(&memory[static_cast<std::size_t>(first_row(rank)) * row_bytes_],
                       static_cast<std::size_t>(first_row(rank + 1) - first_row(rank)) * row_bytes_);
  comm::exchange_between_nodes(world, parts);
  memory_ = std::move(memory);
  memory_left_bytes -= bytes;
  raw_.reset();
  dataset_.reset();
  file_.reset();
  files_.clear();
  return true;
}

}  // namespace lockstep::data
