#include "data/data_file.h"

#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <span>
#include <string_view>

#include "base/progress.h"
#include "base/text.h"
#include "comm/node_memory.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
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

Offsets offsets_of(const hdf5::File& file, const hdf5::Dataset& array) {
  const std::string name = array.name() + offsets_suffix;
  if (array.shape().empty() || !file.exists(name)) return {};
  const hdf5::Dataset stored = file.open_dataset(name);
  const auto damaged = [&](const std::string& why) {
    return Offsets{.damage = fmt::format("{}: {} {}", file.file_path(), name, why)};
  };
  if (!is_integers(stored) || stored.shape().size() != 1)
    return damaged(fmt::format("is {} {}, but the offsets of {} are integers [samples + 1]",
                               stored.type_name(), shape_text(stored), array.name()));
  stored.check_stored();
  Offsets offsets{.begins = std::vector<std::int64_t>(static_cast<std::size_t>(stored.rows()))};
  const std::vector<std::int64_t>& begins = offsets.begins;
  stored.read(std::span<std::int64_t>(offsets.begins));
  if (begins.empty() || begins.front() != 0)
    return damaged(begins.empty() ? "is empty; it has an element for each sample and one more"
                                  : fmt::format("begins with {}, not 0", begins.front()));
  if (const auto fall = std::ranges::is_sorted_until(begins); fall != begins.end())
    return damaged(
        fmt::format("falls from {} to {} at sample {}", fall[-1], *fall, fall - begins.begin() - 1));
  if (begins.back() != array.rows())
    return damaged(fmt::format("ends at {}, but {} has {} rows", begins.back(), array.name(), array.rows()));
  return offsets;
}

std::string index_path(const hdf5::Dataset& array, const std::string& path) {
  if (array.has_attribute("index_of") && !array.is_text_attribute("index_of"))
    throw DataError(
        "{}: the attribute index_of of {} is no text: the name of the array whose rows it numbers",
        array.file_path(), path);
  const std::string text = text_of(array, "index_of");
  return text.empty() || text.starts_with('/') ? text : path.substr(0, path.rfind('/') + 1) + text;
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

namespace {

/// The largest finite |value| in some rows; in the first part of a large row.
double largest_in(const hdf5::Dataset& dataset) {
  constexpr std::int64_t max_rows = 64, max_elements = 1 << 20;
  if (!dataset.dtype() || dataset.numel() == 0) return 0;
  const std::int64_t count =
      std::min(dataset.rows(), std::clamp<std::int64_t>(max_elements / dataset.row_numel(), 1, max_rows));
  double largest = 0;
  const auto see = [&](std::int64_t, std::span<const double> values) {
    for (const double value : values)
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    return count > 1;
  };
  dataset.read_blocks(0, count, see, dataset.rows() / count);
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
  if (dataset.has_attribute("table") && dataset.is_text_attribute("table"))
    meaning.table = {dataset.text_attribute("table"), file};
  return meaning;
}

StoredFile::StoredFile(const std::string& path) : file(path, OpenFile::Mode::read), status(status_of(file)) {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || static_cast<rlim_t>(file.descriptor()) < limit.rlim_cur / 2)
    return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

RowStore::RowStore(std::shared_ptr<const hdf5::File> file, hdf5::Dataset dataset, DType as,
                   std::int64_t& memory_left_bytes, StoredFiles& files)
    : path_(file->file_path()),
      name_(dataset.name()),
      dtype_(as),
      as_stored_(dataset.dtype() == as),
      rows_(dataset.rows()),
      row_bytes_(static_cast<std::size_t>(dataset.row_numel()) * bytes_of(as)) {
  std::set<std::string> paths = dataset.source_paths();
  if (!file->in_memory()) paths.insert(path_);
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
  if (bytes() <= memory_left_bytes) {
    const auto size = static_cast<std::size_t>(bytes());
    std::shared_ptr<std::byte[]> memory(new std::byte[size]);
    dataset.read(dtype_, {memory.get(), size});
    check_files();
    memory_left_bytes -= bytes();
    keep(std::move(memory));
    return;
  }
  if (as_stored_ && paths.size() == 1) raw_ = hdf5::RawRows::of(dataset, files_.front()->file);
  if (raw_) return;
  file_ = std::move(file);
  dataset_ = std::make_unique<hdf5::Dataset>(std::move(dataset));
}

/// The files are not needed any more.
void RowStore::keep(std::shared_ptr<std::byte[]> memory) {
  memory_ = std::move(memory);
  raw_.reset();
  dataset_.reset();
  file_.reset();
  files_.clear();
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
  if (!is_whole) throw DataError("{}: the file ends before row {} of {}", path_, begin + count - 1, name_);
}

void RowStore::hold_on_node(std::span<RowStore* const> stores, comm::HostGroup& world,
                            std::int64_t& memory_left_bytes) {
  // Which fit is decided alike on all ranks.
  std::string wishes;
  for (const RowStore* const store : stores)
    wishes += fmt::format("{} ", store->in_memory() ? -1 : store->bytes());
  const std::uint64_t digest = purpose_of(wishes);
  if (std::ranges::count(comm::all_gather_values(world, digest), digest) < world.size()) return;
  constexpr std::int64_t alignment = 64;
  std::vector<std::pair<RowStore*, std::int64_t>> held;  // and where its rows begin
  std::int64_t size = 0, left_bytes = memory_left_bytes;
  for (RowStore* const store : stores) {
    if (store->in_memory() || store->bytes() > left_bytes) continue;
    held.emplace_back(store, size);
    left_bytes -= store->bytes();
    size += (store->bytes() + alignment - 1) / alignment * alignment;
  }
  if (held.empty()) return;
  const std::shared_ptr<std::byte[]> memory = comm::allocate_on_node(world, static_cast<std::size_t>(size));
  if (!memory) return;

  // Each rank reads the rows that begin in its part of the memory.
  const auto first_row = [&](const std::pair<RowStore*, std::int64_t>& one, int rank) {
    const auto row_bytes = static_cast<std::int64_t>(one.first->row_bytes_);
    const std::int64_t begin = size / world.size() * rank + size % world.size() * rank / world.size();
    return std::clamp<std::int64_t>((begin - one.second + row_bytes - 1) / row_bytes, 0, one.first->rows_);
  };
  comm::run_on_all(world, [&] {
    for (const auto& one : held) {
      const std::int64_t end = first_row(one, world.rank() + 1);
      const RowStore& store = *one.first;
      const auto row_bytes = static_cast<std::int64_t>(store.row_bytes_);
      // HDF5 unpacks a chunk for each call that reads of it, so it reads all at once.
      const std::int64_t rows_at_once =
          store.raw_ ? std::max<std::int64_t>(1, (1 << 26) / row_bytes) : store.rows_;
      for (std::int64_t row = first_row(one, world.rank()); row < end; row += rows_at_once) {
        store.read_rows(row, std::min(rows_at_once, end - row), &memory[one.second + row * row_bytes]);
        progress::tick();
      }
    }
  });
  std::vector<std::int64_t> begins;
  for (int rank = 0; rank <= world.size(); ++rank) {
    const auto next =
        std::ranges::find_if(held, [&](const auto& one) { return first_row(one, rank) < one.first->rows_; });
    begins.push_back(next == held.end()
                         ? size
                         : next->second +
                               first_row(*next, rank) * static_cast<std::int64_t>(next->first->row_bytes_));
  }
  std::vector<std::span<std::byte>> parts;
  for (std::size_t rank = 0; rank + 1 < begins.size(); ++rank)
    parts.emplace_back(&memory[begins[rank]], static_cast<std::size_t>(begins[rank + 1] - begins[rank]));
  comm::exchange_between_nodes(world, parts);
  memory_left_bytes = left_bytes;
  for (const auto& [store, begin] : held)
    store->keep(std::shared_ptr<std::byte[]>(memory, memory.get() + begin));
}

}  // namespace lockstep::data
