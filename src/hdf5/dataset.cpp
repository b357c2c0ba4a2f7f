// Reads and writes datasets, and checks the sources of virtual ones.
#include "lockstep/hdf5/dataset.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "base/text.h"
#include "hdf5/library.h"
#include "lockstep/base/error.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::hdf5 {
namespace {

/// A dataset, usually of another file, from which a virtual dataset takes elements.
struct Source {
  std::string file, dataset;
  std::vector<std::uint64_t> ends;       // of the used part, by dimension
  std::optional<std::int64_t> elements;  // of the virtual dataset that it fills; none: without limit
};

/// The name of a source in the mapping, where %b stands for the number of a block and %% for %.
std::string plain_name(const std::string& name, const Dataset& dataset) {
  std::string plain;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '%' && name.compare(i, 2, "%%") != 0) {
      throw DataError(
          "{}: {} is virtual and numbers its sources ('{}'), which is not supported: name each source",
          dataset.file_path(), dataset.name(), name);
    }
    plain += name[i];
    i += name[i] == '%';
  }
  return plain;
}

Source source_of(const Dataset& dataset, hid_t properties, std::size_t index) {
  const auto check = [&](auto result) {
    return checked(result, dataset.file_path(), dataset.name(), "look up the sources");
  };
  const auto text = [&](const auto& get) {
    std::string name(static_cast<std::size_t>(check(get(properties, index, nullptr, 0))) + 1, '\0');
    check(get(properties, index, name.data(), name.size()));
    name.pop_back();
    return plain_name(name, dataset);
  };
  Source source{text(H5Pget_virtual_filename), text(H5Pget_virtual_dsetname), {}, {}};
  const Handle space = owned_space(check(H5Pget_virtual_srcspace(properties, index)));
  std::array<hsize_t, H5S_MAX_RANK> first{}, last{};
  // An unlimited selection has no bounds.
  if (H5Sget_select_bounds(space.id(), first.data(), last.data()) >= 0) {
    const int rank = check(H5Sget_simple_extent_ndims(space.id()));
    for (int d = 0; d < rank; ++d) source.ends.push_back(last[static_cast<std::size_t>(d)] + 1);
  }
  const Handle filled = owned_space(check(H5Pget_virtual_vspace(properties, index)));
  const hssize_t elements = H5Sget_select_npoints(filled.id());
  if (elements >= 0 && static_cast<hsize_t>(elements) != H5S_UNLIMITED) source.elements = elements;
  return source;
}

/// The first existing path among those where HDF5 looks for the file of a source.
std::string find_source(const std::string& virtual_file, const std::string& source) {
  namespace fs = std::filesystem;
  std::vector<fs::path> places;
  if (fs::path(source).is_absolute()) places.emplace_back(source);
  const fs::path name = fs::path(source).is_absolute() ? fs::path(source).filename() : fs::path(source);
  const char* const prefix = std::getenv("HDF5_VDS_PREFIX");
  if (prefix != nullptr && *prefix != '\0') places.push_back(fs::path(prefix) / name);
  places.push_back(fs::path(virtual_file).parent_path() / name);
  places.push_back(name);
  std::error_code ignored;
  places.push_back(fs::canonical(virtual_file, ignored).parent_path() / name);
  for (const fs::path& place : places) {
    if (fs::exists(place, ignored)) return place.string();
  }
  return places.front().string();
}

}  // namespace

/// Returns the elements of the sources, and adds their files to `paths`.
std::int64_t check_sources(const Dataset& dataset, hid_t properties, std::set<std::string>& paths) {
  // Virtual datasets may be nested or refer to themselves.
  constexpr int deepest = 4;
  thread_local int depth = 0;
  struct Level {
    Level() { ++depth; }
    ~Level() { --depth; }
  } const level;
  if (depth > deepest) {
    throw DataError("{}: {} is virtual, and its sources are nested more than {} times", dataset.file_path(),
                    dataset.name(), deepest);
  }
  std::size_t count = 0;
  std::int64_t elements = 0, filled = 0;
  bool without_end = false;
  checked(H5Pget_virtual_count(properties, &count), dataset.file_path(), dataset.name(),
          "look up the sources");
  for (std::size_t i = 0; i < count; ++i) {
    const Source source = source_of(dataset, properties, i);
    try {
      const std::string path =
          source.file == "." ? dataset.file_path() : find_source(dataset.file_path(), source.file);
      const File file = File::open(path);
      const Dataset there =
          file.open_dataset(source.dataset.starts_with('/') ? source.dataset : "/" + source.dataset);
      for (std::size_t d = 0; d < source.ends.size(); ++d) {
        const std::int64_t extent = d < there.shape().size() ? there.shape()[d] : 1;
        if (static_cast<std::uint64_t>(extent) >= source.ends[d]) continue;
        throw DataError("{}: {} has {} {}, but {} are needed", path, there.name(), extent,
                        d == 0 ? "rows" : fmt::format("elements in dimension {}", d), source.ends[d]);
      }
      without_end = without_end || !source.elements;
      filled += source.elements.value_or(0);
      there.check_stored();
      paths.insert(path);
      paths.insert(there.source_paths().begin(), there.source_paths().end());
      if (__builtin_add_overflow(elements, there.numel(), &elements))
        elements = std::numeric_limits<std::int64_t>::max();
    } catch (const DataError& error) {
      throw DataError("{}: {} is virtual, and one of its sources cannot be read: {}", dataset.file_path(),
                      dataset.name(), error.what());
    }
  }
  if (!without_end && filled < dataset.numel()) {  // HDF5 would read fill values
    throw DataError("{}: {} is virtual, and only {} of its {} elements have a source", dataset.file_path(),
                    dataset.name(), filled, dataset.numel());
  }
  return elements;
}

namespace {

/// A block of elements: `extent` of each dimension, from `start` on, `step` apart.
struct Block {
  std::vector<hsize_t> start, extent, step;

  /// Rows begin, begin + row_step ...
  Block(const Dataset& dataset, std::int64_t begin, std::int64_t count, std::int64_t row_step = 1)
      : start(dataset.shape().size()),
        extent(dataset.shape().begin(), dataset.shape().end()),
        step(start.size(), 1) {
    start[0] = static_cast<hsize_t>(begin);
    extent[0] = static_cast<hsize_t>(count);
    step[0] = static_cast<hsize_t>(row_step);
  }
};

/// Calls call(memory_space, file_space) with the selections of a block, which is contiguous in memory.
template <class Call>
void with_selections(const Dataset& dataset, const Block& block, const Call& call) {
  const LibraryLock lock;
  const auto check = [&](auto result) {
    return checked(result, dataset.file_path(), dataset.name(), "select rows");
  };
  const Handle file = owned_space(check(H5Dget_space(dataset.id()))),
               memory = owned_space(check(
                   H5Screate_simple(static_cast<int>(block.extent.size()), block.extent.data(), nullptr)));
  check(H5Sselect_hyperslab(file.id(), H5S_SELECT_SET, block.start.data(), block.step.data(),
                            block.extent.data(), nullptr));
  call(memory.id(), file.id());
}

/// Calls use(part, elements) for parts of at most 4 MiB as float64, in order, until it returns false.
bool for_parts(Block block, const std::function<bool(const Block&, hsize_t)>& use) {
  constexpr hsize_t max_elements = 1 << 19;
  const hsize_t elements =
      std::accumulate(block.extent.begin(), block.extent.end(), hsize_t{1}, std::multiplies());
  if (elements <= max_elements) return use(block, elements);
  const auto longer = std::ranges::find_if(block.extent, [](hsize_t extent) { return extent > 1; });
  const auto d = static_cast<std::size_t>(longer - block.extent.begin());
  Block front = block;
  front.extent[d] /= 2;
  block.start[d] += front.extent[d] * block.step[d];
  block.extent[d] -= front.extent[d];
  return for_parts(front, use) && for_parts(block, use);
}

/// Calls call(memory_type, memory_space, file_space), which is H5Dread or H5Dwrite, for the rows [begin,
/// begin + count). UsageError if they are out of range, or if their size as `type` is not `bytes`.
template <class Call>
void transfer_rows(const Dataset& dataset, std::int64_t begin, std::int64_t count, DType type,
                   std::size_t bytes, std::string_view action, const Call& call) {
  const std::string &file = dataset.file_path(), &name = dataset.name();
  if (begin < 0 || count < 0 || begin > dataset.rows() - count)
    throw UsageError("{}: {}: rows {} to {} are out of range; there are {}", file, name, begin, begin + count,
                     dataset.rows());
  const std::size_t needed =
      static_cast<std::size_t>(count) * static_cast<std::size_t>(dataset.row_numel()) * bytes_of(type);
  if (bytes != needed) {
    throw UsageError("{}: {}: {} rows as {} take {} bytes, not {}", file, name, count, to_string(type),
                     needed, bytes);
  }
  if (bytes == 0) return;
  const LibraryLock lock;
  const Handle memory_type = number_type(type);
  const auto move = [&](hid_t memory, hid_t there) {
    checked(call(memory_type.id(), memory, there), file, name, action);
  };
  if (count == dataset.rows()) return move(H5S_ALL, H5S_ALL);
  with_selections(dataset, {dataset, begin, count}, move);
}

void check_written(const Dataset& dataset) {
  H5D_space_status_t status = H5D_SPACE_STATUS_ERROR;
  checked(H5Dget_space_status(dataset.id(), &status), dataset.file_path(), dataset.name(), "read");
  if (status == H5D_SPACE_STATUS_NOT_ALLOCATED)
    throw DataError("{}: {} was created but never written", dataset.file_path(), dataset.name());
}

/// HDF5 reads fill values where a chunk was never written.
void check_chunks(const Dataset& dataset) {
  const auto check = [&](auto result) {
    return checked(result, dataset.file_path(), dataset.name(), "look up the chunks");
  };
  const Handle properties = owned_properties(check(H5Dget_create_plist(dataset.id())));
  if (H5Pget_layout(properties.id()) != H5D_CHUNKED) return;
  std::array<hsize_t, H5S_MAX_RANK> extents{};
  const int rank = check(H5Pget_chunk(properties.id(), H5S_MAX_RANK, extents.data()));
  hsize_t needed = 1, written = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(rank); ++d)
    needed *= (static_cast<hsize_t>(dataset.shape()[d]) + extents[d] - 1) / extents[d];
  const Handle space = owned_space(check(H5Dget_space(dataset.id())));  // HDF5 1.10 does not take H5S_ALL
  check(H5Dget_num_chunks(dataset.id(), space.id(), &written));
  if (written < needed)
    throw DataError(
        "{}: {} has {} chunks, of which {} were never written: HDF5 would read fill values; write them (if "
        "the fill value is meant: h5repack -f GZIP=1 OLD.h5 NEW.h5)",
        dataset.file_path(), dataset.name(), needed, needed - written);
}

/// True for an enumeration of one byte with members FALSE = 0 and TRUE = 1, and for a bit field of one byte.
bool is_boolean_type(hid_t type) {
  if (H5Tget_class(type) == H5T_BITFIELD) return H5Tget_size(type) == 1;
  if (H5Tget_class(type) != H5T_ENUM || H5Tget_size(type) != 1 || H5Tget_nmembers(type) != 2) return false;
  const auto has = [&](const char* name, std::uint8_t expected) {
    std::uint8_t value = 0;
    return H5Tenum_valueof(type, name, &value) >= 0 && value == expected;
  };
  return has("FALSE", 0) && has("TRUE", 1);
}

/// "lzf (32000)", if this library lacks a filter that the dataset needs; otherwise empty.
std::string missing_filter(const Dataset& dataset) {
  const Handle properties = owned_properties(H5Dget_create_plist(dataset.id()));
  const int count = H5Pget_nfilters(properties.id());
  for (int i = 0; i < count; ++i) {
    unsigned flags = 0, config = 0;
    std::size_t values = 0;
    std::array<char, 64> name{};
    const H5Z_filter_t filter = H5Pget_filter2(properties.id(), static_cast<unsigned>(i), &flags, &values,
                                               nullptr, name.size() - 1, name.data(), &config);
    if (filter >= 0 && H5Zfilter_avail(filter) <= 0)
      return fmt::format("{} ({})", name[0] == '\0' ? "number" : on_one_line(name.data()), filter);
  }
  return {};
}

/// H5Dread; DataError with the remedy if it failed for lack of a filter. Bit fields, which HDF5 converts to
/// no other type, become the numbers 0 and 1; the memory of `memory` is contiguous.
void read_elements(const Dataset& dataset, hid_t type, hid_t memory, hid_t file, hid_t transfer, void* out) {
  const Handle stored = owned_type(H5Dget_type(dataset.id()));
  const bool is_bits = H5Tget_class(stored.id()) == H5T_BITFIELD;
  if (H5Dread(dataset.id(), is_bits ? H5T_NATIVE_B8 : type, memory, file, transfer, out) < 0) {
    const Failure failure = last_failure();  // before other calls clear it
    if (failure.system_error > 0 || failure.no_memory)
      throw_failure(dataset.file_path(), dataset.name(), "read");
    std::string why = failure.message;
    if (const std::string filter = missing_filter(dataset); !filter.empty())
      why = fmt::format(
          "the filter {} has compressed it, which this HDF5 lacks; rewrite the file where it can be read "
          "(h5repack -f GZIP=4 OLD.h5 NEW.h5), or name the folder of the filter's plugin in HDF5_PLUGIN_PATH",
          filter);
    throw DataError("{}: {}: cannot read: {}", dataset.file_path(), dataset.name(), why);
  }
  if (!is_bits) return;
  const hssize_t count = memory == H5S_ALL ? dataset.numel() : H5Sget_select_npoints(memory);
  auto* const bytes = static_cast<std::uint8_t*>(out);
  std::transform(bytes, bytes + count, bytes, [](std::uint8_t bits) -> std::uint8_t { return bits != 0; });
  checked(H5Tconvert(H5T_NATIVE_UINT8, type, static_cast<std::size_t>(count), out, nullptr, H5P_DEFAULT),
          dataset.file_path(), dataset.name(), "read");
}

bool little_endian(hid_t type) { return H5Tget_size(type) == 1 || H5Tget_order(type) == H5T_ORDER_LE; }

}  // namespace

Dataset::Dataset(Handle handle, std::string file_path, std::string name)
    : Object(std::move(handle), std::move(file_path), std::move(name)) {
  const auto check = [&](auto result) { return checked(result, file_path_, name_, "open"); };
  const Handle properties = owned_properties(check(H5Dget_create_plist(id())));
  if (H5Pget_external_count(properties.id()) > 0) {  // that file may be missing or of another length
    throw DataError("{}: {} keeps its elements in another file, which is not supported: copy it (h5repack)",
                    file_path_, name_);
  }
  const Handle type = owned_type(check(H5Dget_type(id())));
  const Handle space = owned_space(check(H5Dget_space(id())));
  is_text_ = is_text_type(type.id());
  is_boolean_ = is_boolean_type(type.id());
  if (!is_boolean_) dtype_ = dtype_of_type(type.id());
  if (H5Sget_simple_extent_type(space.id()) == H5S_NULL)
    throw DataError("{}: {} has no elements", file_path_, name_);
  const int rank = check(H5Sget_simple_extent_ndims(space.id()));
  std::array<hsize_t, H5S_MAX_RANK> extents{};
  check(H5Sget_simple_extent_dims(space.id(), extents.data(), nullptr));

  // Keeps sizes below 2^62 bytes, so that later products do not overflow.
  std::int64_t bytes_left =
      (std::int64_t{1} << 62) / static_cast<std::int64_t>(std::max<std::size_t>(1, H5Tget_size(type.id())));
  numel_ = row_numel_ = 1;
  for (int d = 0; d < rank; ++d) {
    const hsize_t extent = extents[static_cast<std::size_t>(d)];
    if (extent > static_cast<hsize_t>(bytes_left)) {
      throw DataError("{}: {} claims more elements than any machine could hold", file_path_, name_);
    }
    if (extent > 0) bytes_left /= static_cast<std::int64_t>(extent);
    shape_.push_back(static_cast<std::int64_t>(extent));
    numel_ *= shape_.back();
    if (d > 0) row_numel_ *= shape_.back();
  }
  if (H5Pget_layout(properties.id()) == H5D_VIRTUAL)
    source_numel_ = check_sources(*this, properties.id(), source_paths_);
}

void Dataset::check_stored() const {
  if (numel_ == 0) return;
  if (source_numel_) {  // the constructor has checked the storage of the sources
    if (*source_numel_ >= numel_) return;
    throw DataError("{}: {} claims {} elements, but its sources have {}", file_path_, name_, numel_,
                    *source_numel_);
  }
  const LibraryLock lock;
  check_written(*this);
  constexpr std::uint64_t best_compression = 1 << 14;
  const std::uint64_t element_bytes = dtype_ ? bytes_of(*dtype_) : 1, stored = H5Dget_storage_size(id());
  if (static_cast<std::uint64_t>(numel_) * element_bytes / best_compression > stored) {
    throw DataError("{}: {} claims {} elements, but {} bytes are stored", file_path_, name_, numel_, stored);
  }
  check_chunks(*this);
}

void Dataset::read(DType as, std::span<std::byte> out) const { read_rows(0, rows(), as, out); }

void Dataset::read_rows(std::int64_t begin, std::int64_t count, DType as, std::span<std::byte> out) const {
  transfer_rows(*this, begin, count, as, out.size(), "read", [&](hid_t type, hid_t memory, hid_t file) {
    check_written(*this);
    read_elements(*this, type, memory, file, H5P_DEFAULT, out.data());
    return 0;
  });
}

void Dataset::read_blocks(std::int64_t begin, std::int64_t count, const BlockUse& use,
                          std::int64_t row_step) const {
  std::vector<double> values;
  std::int64_t first = begin * row_numel_;
  for_parts({*this, begin, count, row_step}, [&](const Block& part, hsize_t elements) {
    values.resize(elements);
    // By default HDF5 clears 1 MiB to convert a few elements.
    const Handle transfer = owned_properties(H5Pcreate(H5P_DATASET_XFER));
    const std::size_t buffer_bytes = std::clamp<std::size_t>(elements * sizeof(double), 64, 1 << 20);
    checked(H5Pset_buffer(transfer.id(), buffer_bytes, nullptr, nullptr), file_path_, name_, "read");
    with_selections(*this, part, [&](hid_t memory, hid_t file) {
      read_elements(*this, H5T_NATIVE_DOUBLE, memory, file, transfer.id(), values.data());
    });
    first += std::ssize(values);
    return use(first - std::ssize(values), values);
  });
}

void Dataset::write(DType from, std::span<const std::byte> in) { write_rows(0, rows(), from, in); }

void Dataset::write_rows(std::int64_t begin, std::int64_t count, DType from, std::span<const std::byte> in) {
  transfer_rows(*this, begin, count, from, in.size(), "write", [&](hid_t type, hid_t memory, hid_t file) {
    return H5Dwrite(id(), type, memory, file, H5P_DEFAULT, in.data());
  });
}

std::string Dataset::read_text() const {
  const LibraryLock lock;
  const auto check = [&](auto result) { return checked(result, file_path_, name_, "read"); };
  const Handle type = owned_type(check(H5Dget_type(id())));
  const Handle space = owned_space(check(H5Dget_space(id())));
  check_written(*this);
  return read_one_text(type.id(), space.id(), file_path_, name_, [&](hid_t as, void* buffer) {
    return H5Dread(id(), as, H5S_ALL, H5S_ALL, H5P_DEFAULT, buffer);
  });
}

Extent Dataset::extent() const {
  if (numel_ == 0) return {};
  const LibraryLock lock;
  const auto check = [&](auto result) { return checked(result, file_path_, name_, "locate"); };
  const Handle type = owned_type(check(H5Dget_type(id())));
  const Handle properties = owned_properties(check(H5Dget_create_plist(id())));
  const haddr_t offset = H5Dget_offset(id());
  if (H5Pget_layout(properties.id()) != H5D_CONTIGUOUS || H5Pget_external_count(properties.id()) > 0 ||
      offset == HADDR_UNDEF) {
    throw DataError("{}: {} is not contiguous in the file", file_path_, name_);
  }
  const bool is_text = is_text_ && H5Tis_variable_str(type.id()) == 0;
  if (!is_text && (!dtype_ || !little_endian(type.id()))) {
    throw DataError("{}: {} is neither little-endian numbers nor text of fixed length", file_path_, name_);
  }
  const std::uint64_t element_bytes = is_text ? H5Tget_size(type.id()) : bytes_of(*dtype_);
  return {static_cast<std::uint64_t>(offset), static_cast<std::uint64_t>(numel_) * element_bytes};
}

std::uint64_t Dataset::storage_bytes() const {
  const LibraryLock lock;
  return H5Dget_storage_size(id());
}

}  // namespace lockstep::hdf5
