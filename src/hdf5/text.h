// Private to the module: reading one string, of either kind, from an attribute or a dataset.
#pragma once

#include <memory>
#include <string>

#include "hdf5/library.h"
#include "lockstep/base/error.h"

namespace lockstep::hdf5 {

/// `read(memory_type, buffer)` is H5Aread or H5Dread. The lock is held by the caller.
template <class Read>
std::string read_one_text(hid_t type, hid_t space, const std::string& file, const std::string& object,
                          const Read& read) {
  if (H5Tget_class(type) != H5T_STRING) throw DataError("{}: {} is not text", file, object);
  if (H5Sget_simple_extent_npoints(space) != 1) throw DataError("{}: {} is not one text", file, object);
  if (checked(H5Tis_variable_str(type), file, object, "read") > 0) {
    char* text = nullptr;
    checked(read(type, &text), file, object, "read");
    const auto release = [](char* memory) { H5free_memory(memory); };
    const std::unique_ptr<char, decltype(release)> owner(text, release);
    return text == nullptr ? std::string() : std::string(text);
  }
  constexpr std::size_t largest_text_bytes = std::size_t{1} << 30;
  const std::size_t bytes = H5Tget_size(type);
  if (bytes > largest_text_bytes) throw DataError("{}: {} claims a text of {} bytes", file, object, bytes);
  std::string buffer(bytes, '\0');
  checked(read(type, buffer.data()), file, object, "read");
  return unpadded(buffer, type);
}

}  // namespace lockstep::hdf5
