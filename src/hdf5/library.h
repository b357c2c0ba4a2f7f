// Private to the module: the lock around the HDF5 library, its error stack, types and texts.
#pragma once

#include <hdf5.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/hdf5/object.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::hdf5 {

static_assert(sizeof(hid_t) == sizeof(std::int64_t) && sizeof(herr_t) == sizeof(int));

/// The lock around every use of HDF5, which has global state and is not thread-safe in most builds. On each
/// thread's first use it switches off HDF5's printing of errors; a program can switch it on again.
class LibraryLock {
 public:
  LibraryLock();
  LibraryLock(const LibraryLock&) = delete;
  LibraryLock& operator=(const LibraryLock&) = delete;

 private:
  std::lock_guard<std::recursive_mutex> guard_;
};

/// The last failure of the library: its innermost message, and errno if the system reported it.
struct Failure {
  std::string message;
  int system_error = 0;
  bool no_memory = false;
};
Failure last_failure();

/// Throws DataError "FILE: OBJECT: cannot ACTION: MESSAGE" from the library's last failure (FailureError for
/// EIO, NoMemory). An empty object is omitted.
[[noreturn]] void throw_failure(std::string_view file, std::string_view object, std::string_view action);

/// Returns what HDF5 returned, or throws if that is negative.
template <class T>
T checked(T result, std::string_view file, std::string_view object, std::string_view action) {
  if (result < 0) throw_failure(file, object, action);
  return result;
}

Handle owned_space(hid_t id);
Handle owned_type(hid_t id);
Handle owned_properties(hid_t id);

/// Numbers as files and memory hold them: little endian.
Handle number_type(DType dtype);
Handle text_type(std::size_t bytes);
/// None if the type is not a number of these types, nor an enumeration of such integers.
std::optional<DType> dtype_of_type(hid_t type);
inline bool is_text_type(hid_t type) { return H5Tget_class(type) == H5T_STRING; }
/// Text in a fixed-length buffer, up to its padding.
std::string unpadded(const std::string& buffer, hid_t type);

/// `read(memory_type, buffer)` is H5Aread or H5Dread. The lock is held by the caller.
template <class Read>
std::vector<std::string> read_texts(hid_t type, hid_t space, const std::string& file,
                                    const std::string& object, const Read& read) {
  if (!is_text_type(type)) throw DataError("{}: {} is not text", file, object);
  constexpr std::size_t max_texts = std::size_t{1} << 20, largest_text_bytes = std::size_t{1} << 30;
  const hssize_t points = H5Sget_simple_extent_npoints(space);
  const auto count = static_cast<std::size_t>(std::max<hssize_t>(points, 0));
  if (count > max_texts) throw DataError("{}: {} claims {} texts", file, object, count);
  std::vector<std::string> texts(count);
  if (count == 0) return texts;
  if (checked(H5Tis_variable_str(type), file, object, "read") > 0) {
    std::vector<char*> found(count, nullptr);
    checked(read(type, found.data()), file, object, "read");
    for (std::size_t i = 0; i < count; ++i) {
      const std::unique_ptr<char, decltype(&H5free_memory)> owner(found[i], H5free_memory);
      if (found[i]) texts[i] = found[i];
    }
    return texts;
  }
  const std::size_t bytes = H5Tget_size(type);
  if (bytes > largest_text_bytes / count)
    throw DataError("{}: {} claims a text of {} bytes", file, object, bytes);
  std::string buffer(bytes * count, '\0');
  checked(read(type, buffer.data()), file, object, "read");
  for (std::size_t i = 0; i < count; ++i) texts[i] = unpadded(buffer.substr(i * bytes, bytes), type);
  return texts;
}
template <class Read>
std::string read_one_text(hid_t type, hid_t space, const std::string& file, const std::string& object,
                          const Read& read) {
  if (is_text_type(type) && H5Sget_simple_extent_npoints(space) != 1)
    throw DataError("{}: {} is not one text", file, object);
  return read_texts(type, space, file, object, read).front();
}

}  // namespace lockstep::hdf5
