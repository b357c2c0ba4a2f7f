#include "lockstep/checkpoint/save.h"

#include <cstddef>
#include <vector>

#include "checkpoint/saving.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {

Io io_named(std::string_view name) {
  if (name == "posix") return Io::posix;
  if (name == "mpiio") return Io::mpiio;
  throw UsageError("'{}' is neither posix nor mpiio", name);
}

void save_file(const std::string& path, const Contents& contents, comm::Communicator& communicator,
               const SaveOptions& options) {
  Saving saving(path, contents, communicator, options);
  std::vector<std::byte> copy;
  if (saving.needs_copy()) {
    comm::together(communicator, [&] { copy.resize(saving.copy_bytes()); });
    saving.copy_share(copy.data());
  }
  if (options.io == Io::mpiio) {
    saving.write_share_through_mpi();
  } else {
    comm::together(communicator, [&] { saving.write_share(); });
  }
  saving.complete();
  comm::together(communicator, [&] { saving.publish(); });
}

}  // namespace lockstep::checkpoint
