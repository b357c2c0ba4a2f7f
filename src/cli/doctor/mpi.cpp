// The MPI library.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "cli/doctor/finding.h"

namespace lockstep::cli::checkup {
namespace {

std::string library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string whole(text.data());
  return whole.substr(0, std::min<std::size_t>(60, whole.find_first_of(",\n")));
}

std::string_view thread_level() {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  return level == MPI_THREAD_MULTIPLE     ? "MULTIPLE"
         : level == MPI_THREAD_SERIALIZED ? "SERIALIZED"
         : level == MPI_THREAD_FUNNELED   ? "FUNNELED"
                                          : "SINGLE";
}

}  // namespace

Finding mpi(const comm::HostGroup& world) {
  int major = 0, minor = 0, started = 0;
  MPI_Get_version(&major, &minor);
  MPI_Initialized(&started);
  const int nodes = world.topology().nodes();
  const std::string text =
      fmt::format("{} (MPI {}.{}), {} rank{} on {} machine{}", library(), major, minor, world.size(),
                  world.size() == 1 ? "" : "s", nodes, nodes == 1 ? "" : "s");
  if (!started)
    return {"mpi", Verdict::ok, text + "; not started: mpirun -n 1 lockstep doctor looks at it", ""};
  if (!world.topology().node_major()) {
    return {
        "mpi", Verdict::note, text + "; ranks of a machine are not numbered together",
        "let the launcher fill one machine after another (mpirun --map-by core, srun -m block): sums travel "
        "less"};
  }
  return {"mpi", Verdict::ok, fmt::format("{}, threads {}", text, thread_level()), ""};
}

}  // namespace lockstep::cli::checkup
