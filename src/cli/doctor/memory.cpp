// Shared memory, and the limits that the system sets.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <filesystem>

#include "base/resources.h"
#include "cli/doctor/finding.h"

namespace lockstep::cli::checkup {
namespace {

constexpr std::uint64_t least_bytes = std::uint64_t{128} << 20;  // Docker gives 64 MiB
/// Open MPI's own queues between the ranks of a machine.
constexpr std::uint64_t queue_bytes_a_rank = std::uint64_t{8} << 20;

/// "unlimited" or the number, in units of `unit` bytes.
std::string shown(rlim_t limit, rlim_t unit, std::string_view name) {
  return limit == RLIM_INFINITY ? "unlimited" : fmt::format("{}{}", limit / unit, name);
}

rlim_t limit_of(int resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

bool has_fast_network() {
  std::error_code error;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  return !error && devices != std::filesystem::directory_iterator();
}

}  // namespace

Finding shared_memory(const Scene& scene) {
  const char* const subject = "shared memory";
  struct statvfs info {};
  if (statvfs("/dev/shm", &info) != 0) {
    return {subject, Verdict::note, "/dev/shm is missing",
            "mount a tmpfs there: the ranks of a machine share gradients in it"};
  }
  const std::uint64_t total = info.f_blocks * info.f_frsize, available = info.f_bavail * info.f_frsize;
  const std::uint64_t gradients = scene.needs.gradient_bytes;
  const std::uint64_t needed =
      gradients == 0 ? least_bytes
                     : gradients + queue_bytes_a_rank * static_cast<std::uint64_t>(scene.ranks_here);
  std::string text = fmt::format("/dev/shm has {} of {} free; ", in_bytes(available), in_bytes(total));
  text += gradients == 0 ? "a machine's gradients live there"
                         : fmt::format("{} ranks' gradients and queues need about {}", scene.ranks_here,
                                       in_bytes(needed));
  const auto memory = cgroup_memory();
  if (memory) text += fmt::format("; memory limit {}", in_bytes(*memory));
  if (available < needed) {
    return {subject, Verdict::problem, text,
            "mount it larger (docker: --shm-size, podman: --ipc=host), or remove what others left in it"};
  }
  if (memory && *memory < needed) {
    return {subject, Verdict::problem, text,
            "ask for more memory (#SBATCH --mem): /dev/shm counts towards it"};
  }
  return {subject, Verdict::ok, text, ""};
}

Finding limits(const Scene& scene) {
  const char* const subject = "limits";
  const rlim_t files = limit_of(RLIMIT_NOFILE), locked = limit_of(RLIMIT_MEMLOCK),
               core = limit_of(RLIMIT_CORE), largest_file = limit_of(RLIMIT_FSIZE),
               address_space = limit_of(RLIMIT_AS);
  std::string text = fmt::format("open files {}, locked memory {}, core files {}", shown(files, 1, ""),
                                 shown(locked, 1024, " KiB"), shown(core, 1024, " KiB"));
  if (largest_file != RLIM_INFINITY) text += ", file size " + shown(largest_file, 1024, " KiB");
  if (address_space != RLIM_INFINITY) text += ", address space " + shown(address_space, 1024, " KiB");
  constexpr rlim_t least_files = 256;
  if (files < least_files)
    return {subject, Verdict::problem, text, "raise it: ulimit -n 4096 (MPI opens one or more a peer)"};
  if (largest_file < std::max<std::uint64_t>(scene.needs.checkpoint_bytes, std::uint64_t{1} << 20))
    return {subject, Verdict::problem, text, "ulimit -f unlimited: a checkpoint does not fit"};
  if (address_space != RLIM_INFINITY) {
    return {subject, Verdict::note, text,
            "ulimit -v unlimited: shared memory and libraries take far more addresses than memory"};
  }
  if (locked != RLIM_INFINITY && has_fast_network()) {
    return {subject, Verdict::note, text,
            "ulimit -l unlimited in the job: the InfiniBand network wants locked memory"};
  }
  return {subject, Verdict::ok, text, ""};
}

}  // namespace lockstep::cli::checkup
