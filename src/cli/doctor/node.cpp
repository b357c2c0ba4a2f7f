// Checks of this node: processor, GPUs, memory, limits, libraries.
#include <H5public.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <tuple>

#include "base/cores.h"
#include "base/resources.h"
#include "base/text.h"
#include "cli/doctor/checks.h"
#include "comm/mpi_calls.h"
#include "comm/nccl.h"
#include "kernels/gpus.h"
#include "kernels/math_library.h"

namespace lockstep::cli::checks {
namespace {

bool mpi_started() {
  int started = 0;
  MPI_Initialized(&started);
  return started != 0;
}

int ranks_here(const comm::HostGroup& world) {
  const comm::Topology& topology = world.topology();
  return topology.ranks_on_node(topology.node_of_rank[static_cast<std::size_t>(world.rank())]);
}

/// The number of directory entries named `prefix` and a number; with an empty prefix, of all entries.
int count_entries(const char* directory, std::string_view prefix) {
  int count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    count += prefix.empty() || (name.size() > prefix.size() && name.starts_with(prefix) &&
                                name.find_first_not_of("0123456789", prefix.size()) == std::string::npos);
  }
  return count;
}

/// "unlimited", or the limit in units of `unit` bytes with the unit's name.
std::string limit_text(rlim_t limit, rlim_t unit, std::string_view name) {
  return limit == RLIM_INFINITY ? "unlimited" : fmt::format("{}{}", limit / unit, name);
}

rlim_t limit_of(int resource) {
  rlimit limit{};
  return getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

}  // namespace

std::string in_bytes(std::uint64_t bytes) {
  const auto count = static_cast<double>(bytes);
  return bytes >= 1'000'000'000 ? fmt::format("{:.1f} GB", count * 1e-9)
                                : fmt::format("{:.1f} MB", count * 1e-6);
}

Result processor(const Context& context) {
  const int cores = available_cores(), all = machine_cores();
  std::string text =
      fmt::format("{}, {} of {} cores available to this process, ranks on this node: {}",
                  kernels::math_library().instruction_set, cores, all, ranks_here(context.world));
  const auto quota = cgroup_cores();
  if (quota && std::ceil(*quota) < cores)
    return note(fmt::format("{}; its cgroup limits it to the processor time of {:g} cores", text, *quota),
                "choose ranks and threads by this limit (docker: --cpus), not by the number of cores");
  if (cores < all && !mpi_started())
    return note(text, "taskset, a cgroup or the launcher excludes the other cores; change it to use them");
  return ok(text);
}

Result precision(const Context&) {
  const std::string why_slow = kernels::make_cpu_backend(1)->why_slow_in_bf16();
  return ok(why_slow.empty() ? "fp32, and bf16 in hardware"
                             : "fp32; bf16 would be slower on this CPU: " + why_slow);
}

Result mpi(const Context& context) {
  int major = 0, minor = 0, level = MPI_THREAD_SINGLE;
  MPI_Get_version(&major, &minor);
  const comm::Topology& topology = context.world.topology();
  const std::string text =
      fmt::format("{} (MPI {}.{}), {} on {}", comm::mpi_library(), major, minor,
                  pluralized(context.world.size(), "rank"), pluralized(topology.nodes(), "node"));
  if (!mpi_started()) return ok(text + "; not started: run mpirun -n 1 lockstep doctor to check it");
  if (!topology.node_major())
    return note(
        text + "; rank numbers are not consecutive within a node",
        fmt::format(
            "let the launcher fill one node after another (mpirun {}, srun -m block): this moves fewer "
            "bytes between nodes",
            comm::fill_nodes_flags));
  MPI_Query_thread(&level);
  return ok(fmt::format("{}, threads {}", text,
                        level == MPI_THREAD_MULTIPLE     ? "MULTIPLE"
                        : level == MPI_THREAD_SERIALIZED ? "SERIALIZED"
                        : level == MPI_THREAD_FUNNELED   ? "FUNNELED"
                                                         : "SINGLE"));
}

Result hdf5(const Context&) {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  std::string text = fmt::format("HDF5 {}.{}.{}", major, minor, release);
  if (std::tuple(major, minor) < std::tuple(1u, 10u)) return problem(text, "install version 1.10 or newer");
  if (std::tuple(major, minor, release) != std::tuple(H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE))
    return problem(
        fmt::format("{}, but the program was built with {}.{}.{}", text, H5_VERS_MAJOR, H5_VERS_MINOR,
                    H5_VERS_RELEASE),
        "load that version (LD_LIBRARY_PATH, module), or rebuild the program: HDF5 aborts a program "
        "built with another version");
  const char* const locking = std::getenv("HDF5_USE_FILE_LOCKING");
  return ok(locking ? fmt::format("{}, HDF5_USE_FILE_LOCKING={}", text, locking) : text);
}

Result onednn(const Context&) {
  const kernels::MathLibrary& library = kernels::math_library();
  return ok(fmt::format("{}, {}", library.version, library.instruction_set));
}

Result gpu(const Context&) {
  const kernels::Gpus gpus = kernels::find_gpus();
  const char* const slurm_gpus = std::getenv("SLURM_GPUS_ON_NODE");
  const int requested = slurm_gpus ? std::atoi(slurm_gpus) : 0;
  if (!gpus.built) {
    const int devices = count_entries("/dev", "nvidia");
    const std::string text = "this build supports CPUs only";
    if (devices == 0 && requested == 0) return ok(text);
    return note(fmt::format("{}; {} on this node, {} requested from Slurm", text, pluralized(devices, "GPU"),
                            requested),
                "request no GPUs (they would be idle), or build with -DLOCKSTEP_CUDA=ON");
  }
  const std::string versions =
      fmt::format("built with CUDA {}, {}", gpus.runtime,
                  gpus.driver.empty() ? "no driver" : "driver for CUDA " + gpus.driver);
  if (!gpus.problem.empty()) return problem(fmt::format("{}; {}", gpus.problem, versions), gpus.remedy);
  const int found = static_cast<int>(gpus.visible.size());
  if (found < requested)
    return problem(
        fmt::format("only {} of the {} GPUs that the job requested; {}", found, requested, versions),
        "exclude this node (sbatch --exclude) and tell the administrators");
  if (found == 0) return ok(fmt::format("none on this node: runs compute on its CPUs; {}", versions));
  std::vector<std::string> names;
  const kernels::GpuCode* first =
      nullptr;  // the first one with a remark; code that does not run counts first
  for (const kernels::Gpu& gpu : gpus.visible) {
    names.push_back(gpu.describe());
    if (!gpu.code.remark.empty() && (!first || first->runs)) first = &gpu.code;
  }
  const std::string text = fmt::format("{}; {}", fmt::join(names, ", "), versions);
  if (!first) return ok(text);
  return (first->runs ? note : problem)(fmt::format("{}; {}", text, first->remark), first->remedy);
}

Result nccl(const Context&) {
  const kernels::Gpus gpus = kernels::find_gpus();
  if (!gpus.built) return ok("this build has no NCCL: sums use MPI");
  const comm::NcclFound found = comm::find_nccl();
  if (found.problem.empty()) return ok(found.version);
  if (gpus.visible.empty()) return ok("no GPU on this node: sums use MPI");
  return gpus.visible.size() > 1 ? problem(found.problem, found.remedy) : note(found.problem, found.remedy);
}

Result shared_memory(const Context& context) {
  struct statvfs info {};
  if (statvfs("/dev/shm", &info) != 0)
    return note("/dev/shm does not exist", "mount a tmpfs there: the ranks of a node share gradients in it");
  if (::access("/dev/shm", W_OK | X_OK) != 0)
    return problem(fmt::format("/dev/shm is not writable: {}", std::strerror(errno)),
                   "make it writable (chmod 1777, mounted read-write): the ranks of a node share "
                   "gradients in it");
  // Docker's default is 64 MiB. Open MPI's queues between the ranks of a node take about 8 MiB per rank.
  constexpr std::uint64_t min_bytes = 128 << 20, queue_bytes_per_rank = 8 << 20;
  const std::uint64_t total = info.f_blocks * info.f_frsize, available = info.f_bavail * info.f_frsize;
  const std::uint64_t gradients = context.needed.gradient_bytes;
  const int ranks = ranks_here(context.world);
  const std::uint64_t needed =
      gradients == 0 ? min_bytes : gradients + queue_bytes_per_rank * static_cast<std::uint64_t>(ranks);
  std::string text = fmt::format("/dev/shm has {} of {} free; ", in_bytes(available), in_bytes(total));
  text += gradients == 0 ? "the ranks of a node share gradients in it"
                         : fmt::format("the gradients and queues of {} need about {}",
                                       pluralized(ranks, "rank"), in_bytes(needed));
  const auto memory = cgroup_memory();
  if (memory) text += fmt::format("; memory limit {}", in_bytes(*memory));
  if (available < needed)
    return problem(text,
                   "enlarge /dev/shm (docker: --shm-size, podman: --ipc=host), or remove old files in it");
  if (memory && *memory < needed)
    return problem(text, "request more memory (#SBATCH --mem): /dev/shm counts towards the limit");
  return ok(text);
}

Result limits(const Context& context) {
  const rlim_t files = limit_of(RLIMIT_NOFILE), locked = limit_of(RLIMIT_MEMLOCK),
               core = limit_of(RLIMIT_CORE), file_size = limit_of(RLIMIT_FSIZE),
               address_space = limit_of(RLIMIT_AS);
  std::string text = fmt::format("open files {}, locked memory {}, core files {}", limit_text(files, 1, ""),
                                 limit_text(locked, 1024, " KiB"), limit_text(core, 1024, " KiB"));
  if (file_size != RLIM_INFINITY) text += ", file size " + limit_text(file_size, 1024, " KiB");
  if (address_space != RLIM_INFINITY) text += ", address space " + limit_text(address_space, 1024, " KiB");
  constexpr rlim_t min_files = 256;
  if (files < min_files)
    return problem(text, "raise the limit on open files (ulimit -n 4096): MPI opens one or more per rank");
  if (file_size < std::max<std::uint64_t>(context.needed.checkpoint_bytes, 1 << 20))
    return problem(text, "remove the limit on file size (ulimit -f unlimited): a checkpoint exceeds it");
  if (address_space != RLIM_INFINITY)
    return note(
        text,
        "remove the limit on address space (ulimit -v unlimited): libraries reserve more than they use");
  if (locked != RLIM_INFINITY && count_entries("/sys/class/infiniband", "") > 0)
    return note(
        text,
        "remove the limit on locked memory in the job (ulimit -l unlimited): InfiniBand needs locked memory");
  return ok(text);
}

}  // namespace lockstep::cli::checks
