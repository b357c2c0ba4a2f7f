// Private to the module: the one lock around the HDF5 library, its error stack, and the types it is asked
// for.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <string_view>

#include "lockstep/hdf5/element_type.h"
#include "lockstep/hdf5/handle.h"

namespace lockstep::hdf5 {

static_assert(sizeof(hid_t) == sizeof(std::int64_t) && sizeof(herr_t) == sizeof(int));

/// Held around every use of HDF5: the library's state is the process's, and most builds of it know no
/// threads. Switches the library's own printing of errors off on each thread's first use (at exit too it
/// would report what damaged files left open inside it); a program that wants the printing can switch it on
/// again.
class LibraryLock {
 public:
  LibraryLock();
  LibraryLock(const LibraryLock&) = delete;
  LibraryLock& operator=(const LibraryLock&) = delete;

 private:
  std::lock_guard<std::recursive_mutex> guard_;
};

/// The last failure of the library: the message nearest to its cause, and errno if it was the system's.
struct Failure {
  std::string message;
  int system_error = 0;
};
Failure last_failure();

/// Throws DataError "FILE: OBJECT: cannot ACTION: MESSAGE" from the library's last failure (FailureError for
/// EIO). An empty object is left out.
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

/// The type as memory holds it, native byte order (file order is little endian: the same on every machine we
/// run on). Not for text and other: UsageError.
Handle memory_type(ElementType type);
/// The type as files hold it: little endian.
Handle file_type(ElementType type);
Handle text_type(std::size_t bytes);
ElementType classify(hid_t type);
/// Text in a fixed-length buffer, up to its padding.
std::string unpadded(const std::string& buffer, hid_t type);

}  // namespace lockstep::hdf5
