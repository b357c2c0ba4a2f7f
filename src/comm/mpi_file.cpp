#include "comm/mpi_file.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <string_view>

#include "lockstep/base/system_error.h"
#include "lockstep/base/whereabouts.h"

namespace lockstep::comm {
namespace {

/// Counts are ints in MPI.
constexpr std::uint64_t most_bytes_per_call = std::uint64_t{1} << 30;

int system_error_of(int code) {
  int error_class = MPI_ERR_IO;
  MPI_Error_class(code, &error_class);
  switch (error_class) {
    case MPI_ERR_NO_SPACE:
      return ENOSPC;
    case MPI_ERR_QUOTA:
      return EDQUOT;
    case MPI_ERR_READ_ONLY:
      return EROFS;
    case MPI_ERR_NO_SUCH_FILE:
      return ENOENT;
    case MPI_ERR_ACCESS:
      return EACCES;
    default:
      return EIO;
  }
}

class MpiFile final : public SharedFile {
 public:
  MpiFile(MPI_Comm comm, std::string path) : path_(std::move(path)) {
    const whereabouts::Waiting waiting;
    // Errors of files come back as codes unless somebody asked for something else.
    check(MPI_File_open(comm, path_.c_str(), MPI_MODE_WRONLY, MPI_INFO_NULL, &file_), "open");
  }
  ~MpiFile() override {
    if (std::uncaught_exceptions() == 0) MPI_File_close(&file_);
  }
  MpiFile(const MpiFile&) = delete;
  MpiFile& operator=(const MpiFile&) = delete;

  std::uint64_t write_at(std::uint64_t offset, const void* data, std::uint64_t bytes) override {
    const auto* from = static_cast<const std::byte*>(data);
    std::uint64_t done = 0;
    while (done < bytes) {
      const std::uint64_t piece = std::min(bytes - done, most_bytes_per_call);
      MPI_Status status;
      int written = 0;
      const int code = MPI_File_write_at(file_, static_cast<MPI_Offset>(offset + done), from + done,
                                         static_cast<int>(piece), MPI_BYTE, &status);
      // The count is what tells: Open MPI's own component reports success for writes that failed or were cut
      // short (4.1.4).
      if (code == MPI_SUCCESS) MPI_Get_count(&status, MPI_BYTE, &written);
      if (written <= 0) break;
      done += static_cast<std::uint64_t>(written);
      whereabouts::mark();
    }
    return done;
  }

  void sync() override {
    const whereabouts::Waiting waiting;
    check(MPI_File_sync(file_), "sync");
  }

 private:
  void check(int code, std::string_view action) const {
    if (code != MPI_SUCCESS) throw_system_error(system_error_of(code), path_, action);
  }

  std::string path_;
  MPI_File file_ = MPI_FILE_NULL;
};

}  // namespace

std::unique_ptr<SharedFile> open_mpi_file(MPI_Comm comm, const std::string& path) {
  return std::make_unique<MpiFile>(comm, path);
}

}  // namespace lockstep::comm
