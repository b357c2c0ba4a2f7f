// Opening, creating and closing files.
#include "lockstep/hdf5/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "hdf5/library.h"
#include "lockstep/base/error.h"
#include "lockstep/base/system_error.h"

namespace lockstep::hdf5 {
namespace {

enum class Locking { as_the_environment_says, tolerant, off };

Handle access_properties(const std::string& path, Locking locking) {
  Handle access = owned_properties(checked(H5Pcreate(H5P_FILE_ACCESS), path, "", "open"));
  const auto check = [&](herr_t result) { checked(result, path, "", "open"); };
  check(H5Pset_fapl_sec2(access.id()));
  check(H5Pset_fclose_degree(access.id(), H5F_CLOSE_STRONG));
  if (locking != Locking::as_the_environment_says) {
    check(H5Pset_file_locking(access.id(), locking == Locking::tolerant, true));
  }
  return access;
}

/// Says why a file could not be opened: the system's reason if it has one, then the plain ones, then HDF5's.
[[noreturn]] void throw_cannot_open(const std::string& path, bool for_writing, const Failure& failure) {
  if (failure.system_error == EAGAIN)
    throw FailureError("{}: cannot open: another program has it open for writing", path);
  if (failure.system_error > 0) throw_system_error(failure.system_error, path, "open");
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) throw_system_error(errno, path, "open");
  if (S_ISDIR(status.st_mode)) throw DataError("{}: cannot open: it is a directory, not an HDF5 file", path);
  if (access(path.c_str(), for_writing ? R_OK | W_OK : R_OK) != 0) throw_system_error(errno, path, "open");
  if (status.st_size == 0) throw DataError("{}: cannot open: the file is empty", path);
  if (H5Fis_hdf5(path.c_str()) == 0) throw DataError("{}: cannot open: it is not an HDF5 file", path);
  throw DataError("{}: cannot open: {}", path, failure.message);
}

struct Attempt {
  Handle file;
  Failure failure;  // taken at once: the next call into the library clears its error stack
};

Attempt attempt_open(const std::string& path, bool for_writing, Locking locking) {
  const Handle access = access_properties(path, locking);
  Attempt attempt;
  attempt.file =
      Handle(H5Fopen(path.c_str(), for_writing ? H5F_ACC_RDWR : H5F_ACC_RDONLY, access.id()), H5Fclose);
  if (!attempt.file) attempt.failure = last_failure();
  return attempt;
}

/// HDF5 opens whatever it is told to, and a named pipe would not answer.
void check_kind(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
    throw DataError("{}: cannot open: it is not a regular file", path);
}

Handle open_file(const std::string& path, bool for_writing) {
  check_kind(path);
  const bool environment_decides = for_writing || std::getenv("HDF5_USE_FILE_LOCKING") != nullptr;
  Attempt attempt = attempt_open(path, for_writing,
                                 environment_decides ? Locking::as_the_environment_says : Locking::tolerant);
  if (!attempt.file && !environment_decides) {
    // Some network file systems answer a lock with an error of their own; a reader can do without one.
    const int reason = attempt.failure.system_error;
    if (reason == ENOLCK || reason == EOPNOTSUPP) attempt = attempt_open(path, for_writing, Locking::off);
  }
  if (!attempt.file) throw_cannot_open(path, for_writing, attempt.failure);
  return std::move(attempt.file);
}

hid_t open_root(hid_t file, const std::string& path) {
  return checked(H5Gopen2(file, "/", H5P_DEFAULT), path, "/", "open");
}

}  // namespace

File::File(Handle file, const std::string& path)
    : Group(Handle(open_root(file.id(), path), H5Gclose), path, "/"), file_(std::move(file)) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    handle_.close();
    file_ = std::move(other.file_);
    Group::operator=(std::move(other));
  }
  return *this;
}

File::~File() { handle_.close(); }

File File::open(const std::string& path) {
  const LibraryLock lock;
  return {open_file(path, false), path};
}

File File::open_for_writing(const std::string& path) {
  const LibraryLock lock;
  return {open_file(path, true), path};
}

File File::create(const std::string& path, const CreateOptions& options) {
  const LibraryLock lock;
  const auto check = [&](auto result) { return checked(result, path, "", "create"); };
  const Handle access = access_properties(path, Locking::as_the_environment_says);
  if (options.checksummed) check(H5Pset_libver_bounds(access.id(), H5F_LIBVER_V110, H5F_LIBVER_V110));
  check(H5Pset_alignment(access.id(), options.alignment_from_bytes, options.alignment_bytes));
  const Handle creation = owned_properties(check(H5Pcreate(H5P_FILE_CREATE)));
  check(H5Pset_link_creation_order(creation.id(), H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED));
  check(H5Pset_obj_track_times(creation.id(), false));
  const bool replace = options.existing == CreateOptions::Existing::replace;
  Handle file(H5Fcreate(path.c_str(), replace ? H5F_ACC_TRUNC : H5F_ACC_EXCL, creation.id(), access.id()),
              H5Fclose);
  if (!file) throw_failure(path, "", "create");
  return {std::move(file), path};
}

void File::flush() {
  const LibraryLock lock;
  checked(H5Fflush(file_.id(), H5F_SCOPE_LOCAL), file_path_, "", "write");
}

void File::close() {
  if (!file_) return;
  const LibraryLock lock;
  handle_.close();
  checked(H5Fclose(file_.release()), file_path_, "", "write");
}

}  // namespace lockstep::hdf5
