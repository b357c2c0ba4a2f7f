// Ends badly on its last rank while the others wait in a barrier, to show that a run ends, and with which
// code.
//   ending abort   the last rank aborts with code 3
//   ending throw   an exception leaves the last rank's world, with a flat buffer in it; the rank exits with
//   code 4
#include <cstdio>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/comm/communicator.h"

int main(int argc, char** argv) {
  try {
    lockstep::comm::World world(argc, argv);
    lockstep::comm::CpuCommunicator& ranks = world.communicator();
    const auto flat_buffer = ranks.allocate_buffer(1 << 16, 2);
    if (ranks.rank() == ranks.size() - 1) {
      if (argc > 1 && std::string_view(argv[1]) == "abort") ranks.abort(3);
      throw lockstep::TrainingError("loss is not finite");
    }
    ranks.barrier();
    std::puts("passed the barrier");
  } catch (const lockstep::Error& error) {
    return static_cast<int>(error.code());
  }
  return 0;
}
