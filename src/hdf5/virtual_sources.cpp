// Finding and opening the sources of virtual datasets.
#include "hdf5/virtual_sources.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::hdf5 {
namespace {

/// A piece of a virtual dataset: elements of a dataset of another file.
struct Source {
  std::string file, dataset;
  std::vector<std::uint64_t> ends;       // of what is used of it, by dimension
  std::optional<std::int64_t> elements;  // of the virtual dataset that it fills; none: as many as there are
};

/// A name as the mapping holds it, in which %b would stand for a block's number and %% stands for %.
std::string plain_name(const std::string& name, const Dataset& dataset) {
  std::string plain;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '%' && name.compare(i, 2, "%%") != 0) {
      throw DataError(
          "{}: {} is virtual and numbers its sources ('{}'), which is not supported: name each of them",
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
  // A selection without an end takes what is there.
  if (H5Sget_select_bounds(space.id(), first.data(), last.data()) >= 0) {
    const int rank = check(H5Sget_simple_extent_ndims(space.id()));
    for (int d = 0; d < rank; ++d) source.ends.push_back(last[static_cast<std::size_t>(d)] + 1);
  }
  const Handle filled = owned_space(check(H5Pget_virtual_vspace(properties, index)));
  const hssize_t elements = H5Sget_select_npoints(filled.id());
  if (elements >= 0 && static_cast<hsize_t>(elements) != H5S_UNLIMITED) source.elements = elements;
  return source;
}

/// Where HDF5 looks for a source's file: it takes the first that opens.
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

std::int64_t check_sources(const Dataset& dataset, hid_t properties) {
  // More than anybody nests them, and an end to those that name themselves.
  constexpr int deepest = 4;
  thread_local int depth = 0;
  struct Level {
    Level() { ++depth; }
    ~Level() { --depth; }
  } const level;
  if (depth > deepest) {
    throw DataError("{}: {} is virtual, and so are its sources, more than {} times", dataset.file_path(),
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
      if (__builtin_add_overflow(elements, there.numel(), &elements))
        elements = std::numeric_limits<std::int64_t>::max();
    } catch (const DataError& error) {
      throw DataError("{}: {} is virtual, and a source of it cannot be read: {}", dataset.file_path(),
                      dataset.name(), error.what());
    }
  }
  if (!without_end && filled < dataset.numel()) {  // HDF5 would make up the others
    throw DataError("{}: {} is virtual, and only {} of its {} elements have a source", dataset.file_path(),
                    dataset.name(), filled, dataset.numel());
  }
  return elements;
}

}  // namespace lockstep::hdf5
