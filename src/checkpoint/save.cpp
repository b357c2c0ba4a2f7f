#include "lockstep/checkpoint/save.h"

#include <cstddef>
#include <vector>

#include "checkpoint/saving.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {

void save_file(const std::string& path, const Contents& contents, comm::Communicator& communicator,
               const SaveOptions& options) {
  Saving saving(path, contents, communicator, options);
  std::vector<std::byte> copy;
  if (saving.needs_copy()) {
    comm::together(communicator, [&] { copy.resize(saving.copy_bytes()); });
    saving.copy_share(copy.data());
  }
  comm::together(communicator, [&] { saving.write_share(); });
  saving.complete();
  comm::together(communicator, [&] { saving.publish(); });
}

}  // namespace lockstep::checkpoint
