// The one lock around the HDF5 library, and its error stack as exceptions.
#include "hdf5/library.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/system_error.h"

namespace lockstep::hdf5 {
namespace {

// Guards state that is the library's and so the process's: there can be only one.
std::recursive_mutex& library_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

extern "C" herr_t keep_first(unsigned position, const H5E_error2_t* error, void* message) {
  if (position == 0 && error->desc != nullptr) {
    try {
      *static_cast<std::string*>(message) = error->desc;
    } catch (...) {
      return -1;
    }
  }
  return 0;
}

}  // namespace

LibraryLock::LibraryLock() : guard_(library_mutex()) {
  // At the end of the process HDF5 would close what is open, and crash where that has failed before (a full
  // disk, a limit of file sizes). Files of ours are closed where they are used.
  static const bool without_atexit = H5dont_atexit() >= 0;
  static_cast<void>(without_atexit);
  // The setting belongs to the thread in thread-safe builds of HDF5, to the process in others.
  thread_local bool silenced = false;
  if (!silenced) silenced = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
}

void Handle::close() noexcept {
  if (id_ < 0) return;
  const LibraryLock lock;
  // The file may have been closed first and have taken its objects along.
  if (H5Iis_valid(id_) > 0) closer_(id_);
  id_ = -1;
}

Failure last_failure() {
  Failure failure;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &failure.message);
  if (failure.message.empty()) failure.message = "HDF5 gives no reason";
  // The drivers put the system's error into the text: "... errno = 28, error message = 'No space left on
  // device' ...".
  if (const auto at = failure.message.find("errno = "); at != std::string::npos) {
    failure.system_error = std::atoi(failure.message.c_str() + at + std::strlen("errno = "));
    if (failure.system_error > 0) failure.message = std::strerror(failure.system_error);
  }
  return failure;
}

void throw_failure(std::string_view file, std::string_view object, std::string_view action) {
  const Failure failure = last_failure();
  const std::string where = object.empty() ? std::string(file) : fmt::format("{}: {}", file, object);
  if (failure.system_error > 0) throw_system_error(failure.system_error, where, action);
  throw DataError("{}: cannot {}: {}", where, action, failure.message);
}

Handle owned_space(hid_t id) { return {id, H5Sclose}; }
Handle owned_type(hid_t id) { return {id, H5Tclose}; }
Handle owned_properties(hid_t id) { return {id, H5Pclose}; }

}  // namespace lockstep::hdf5
