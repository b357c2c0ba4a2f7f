// The MPI library, and who writes files for it.
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

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

/// The tools interface of MPI while it lives.
class Tools {
 public:
  Tools() {
    int provided = 0;
    ready_ = MPI_T_init_thread(MPI_THREAD_FUNNELED, &provided) == MPI_SUCCESS;
  }
  ~Tools() {
    if (ready_) MPI_T_finalize();
  }
  Tools(const Tools&) = delete;
  Tools& operator=(const Tools&) = delete;

  bool has(const char* variable) const { return index_of(variable) >= 0; }
  /// The value of an integer variable; `otherwise` if there is none of this name.
  int value(const char* variable, int otherwise) const {
    const int index = index_of(variable);
    MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
    int count = 0, value = otherwise;
    if (index < 0 || MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) != MPI_SUCCESS)
      return otherwise;
    if (count == 1 && MPI_T_cvar_read(handle, &value) != MPI_SUCCESS) value = otherwise;
    MPI_T_cvar_handle_free(&handle);
    return value;
  }

 private:
  int index_of(const char* variable) const {
    int index = -1;
    return ready_ && MPI_T_cvar_get_index(variable, &index) == MPI_SUCCESS ? index : -1;
  }
  bool ready_ = false;
};

/// Components of MPI-IO are loaded with the first file.
bool open_a_file(const std::string& directory) {
  const std::string path = fmt::format("{}/.lockstep-doctor-mpi-io-{}", directory, getpid());
  MPI_File file = MPI_FILE_NULL;
  if (MPI_File_open(MPI_COMM_SELF, path.c_str(), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file) !=
      MPI_SUCCESS)
    return false;
  MPI_File_close(&file);
  std::remove(path.c_str());
  return true;
}

}  // namespace

Finding mpi(const comm::Communicator& world) {
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

Finding mpi_io(const Scene& scene) {
  const char* const subject = "mpi-io";
  if (!scene.launched) return {subject, Verdict::ok, "not started: used by checkpoint.io = mpiio only", ""};
  if (!open_a_file(scene.place)) {
    return {subject, Verdict::note, fmt::format("cannot open a file in {}", scene.place),
            "keep checkpoint.io = posix"};
  }
  const Tools tools;
  // A component that was not loaded has no variables.
  const int ompio = tools.value("io_ompio_priority", -1);
  const int romio =
      std::max({tools.value("io_romio321_priority", -1), tools.value("io_romio341_priority", -1),
                tools.value("io_romio314_priority", -1)});
  if (ompio < 0 && romio < 0) return {subject, Verdict::ok, "the MPI library's own", ""};
  if (romio > ompio) return {subject, Verdict::ok, "ROMIO", ""};
  if (!tools.has("fcoll_vulcan_priority"))
    return {subject, Verdict::ok, "ompio, without its component fcoll/vulcan", ""};
  return {subject, Verdict::note,
          "ompio with fcoll/vulcan, which is reported to corrupt files in collective writes "
          "(open-mpi/ompi#12718); Lockstep makes none, other programs do",
          "switch with OMPI_MCA_io=^ompio (ROMIO) or OMPI_MCA_fcoll=^vulcan in the environment"};
}

}  // namespace lockstep::cli::checkup
