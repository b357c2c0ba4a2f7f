// lockstep doctor: what this machine, MPI and HDF5 can do, and what is wrong.
#include <H5public.h>
#include <dnnl.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <mpi.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/verb.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/processor.h"

namespace lockstep::cli {
namespace {

enum class Verdict { ok, note, problem };

struct Finding {
  std::string subject;
  Verdict verdict;
  std::string text;  ///< what was found and, unless ok, what to do
};

std::string_view word(Verdict verdict) {
  return verdict == Verdict::ok ? "ok" : verdict == Verdict::note ? "note" : "problem";
}

Finding processor(const comm::Communicator& world) {
  const int cores = available_cores();
  const int ranks =
      world.topology().ranks_on_node(world.topology().node_of_rank[static_cast<std::size_t>(world.rank())]);
  const std::string text = fmt::format("{}, {} cores for this process, ranks on this machine: {}",
                                       instruction_set(), cores, ranks);
  const auto machine_cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  if (ranks > machine_cores) {
    return {"processor", Verdict::note,
            text + "; more ranks than cores: they take turns, expect no speed-up"};
  }
  if (cores < machine_cores && ranks == 1 && world.size() == 1) {
    return {
        "processor", Verdict::note,
        text + fmt::format("; the machine has {}: the rest is bound away (taskset, cgroup or the launcher)",
                           machine_cores)};
  }
  return {"processor", Verdict::ok, text};
}

Finding mpi(const comm::Communicator& world) {
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0, major = 0, minor = 0;
  MPI_Get_library_version(library, &length);
  MPI_Get_version(&major, &minor);
  const std::string name = std::string(library, static_cast<std::size_t>(length)).substr(0, 40);
  return {"mpi", Verdict::ok,
          fmt::format("{} (MPI {}.{}), {} rank{} on {} machine{}", name.substr(0, name.find(',')), major,
                      minor, world.size(), world.size() == 1 ? "" : "s", world.topology().nodes(),
                      world.topology().nodes() == 1 ? "" : "s")};
}

Finding hdf5() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  const std::string text = fmt::format("HDF5 {}.{}.{}", major, minor, release);
  if (major == 1 && minor < 10) return {"hdf5", Verdict::problem, text + ": version 1.10 or newer is needed"};
#ifdef H5_HAVE_PARALLEL
  return {"hdf5", Verdict::ok, text + ", MPI build"};
#else
  return {"hdf5", Verdict::note, text + ", serial build: checkpoint.io = posix works, mpiio does not"};
#endif
}

Finding onednn() {
  const dnnl_version_t* const version = dnnl_version();
  return {"onednn", Verdict::ok,
          fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch)};
}

double gigabytes(std::uint64_t bytes) { return static_cast<double>(bytes) * 1e-9; }

Finding shared_memory() {
  struct statvfs info {};
  if (statvfs("/dev/shm", &info) != 0) {
    return {"shared memory", Verdict::note,
            "/dev/shm is missing: ranks of a machine will be slower; mount a tmpfs there"};
  }
  const std::uint64_t free_bytes = info.f_bavail * info.f_frsize;
  const std::string text = fmt::format("/dev/shm has {:.1f} GB free", gigabytes(free_bytes));
  if (free_bytes < (std::uint64_t{256} << 20)) {
    return {"shared memory", Verdict::problem,
            text + "; gradients live there: mount it larger (docker: --shm-size)"};
  }
  return {"shared memory", Verdict::ok, text};
}

/// Writes and syncs a small file, so that a full or read-only place is found before a run is.
Finding disk(const std::string& directory) {
  constexpr std::size_t bytes = std::size_t{16} << 20;
  struct statvfs info {};
  if (statvfs(directory.c_str(), &info) != 0)
    return {"disk", Verdict::problem, directory + " does not exist: make it"};
  const std::string path = fmt::format("{}/.lockstep-doctor-{}", directory, getpid());
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0)
    return {"disk", Verdict::problem, directory + " is not writable: choose another place (--dir)"};
  unlink(path.c_str());
  const std::vector<char> block(bytes, 1);
  const Stopwatch watch;
  const bool written = write(file, block.data(), bytes) == static_cast<ssize_t>(bytes) && fsync(file) == 0;
  const double seconds = watch.elapsed_ms() * 1e-3;
  close(file);
  if (!written) return {"disk", Verdict::problem, directory + ": writing 16 MB failed: free some space"};
  return {"disk", Verdict::ok,
          fmt::format("{}: {:.1f} GB free, {:.0f} MB/s written and synced", directory,
                      gigabytes(info.f_bavail * info.f_frsize), 16 / seconds)};
}

Finding gpu() {
  try {
    kernels::make_cuda_backend(0);
    return {"gpu", Verdict::ok, "found"};
  } catch (const Error& error) {
    return {"gpu", Verdict::note, error.what()};
  }
}

/// Machines of one run must be alike: different instruction sets or builds give different bits.
Finding alike(comm::Communicator& world) {
  const dnnl_version_t* const version = dnnl_version();
  const std::string mine = fmt::format("lockstep {}, {}, oneDNN {}.{}.{}", LOCKSTEP_VERSION,
                                       instruction_set(), version->major, version->minor, version->patch);
  const std::vector<std::string> all = world.all_gather_texts(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return {"ranks alike", Verdict::problem,
            fmt::format("rank 0 has {}; rank {} has {}: install the same build everywhere", all[0], rank,
                        all[rank])};
  }
  return {"ranks alike", Verdict::ok, fmt::format("{} on every rank", mine)};
}

}  // namespace

ExitCode doctor(Session& session, const Arguments& arguments) {
  OptionSet options("doctor [--dir DIR] [--json]",
                    "Says what this machine, MPI, HDF5 and the disk can do, and what is wrong. Run\n"
                    "it under mpirun or srun to compare all machines. Exit code: 1 on a problem.");
  options.add()("dir", po::value<std::string>()->default_value("."), "where runs will be kept");
  options.add()("json", "print one JSON document");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;

  comm::Communicator& world = session.world();
  std::vector<Finding> findings{processor(world),
                                mpi(world),
                                hdf5(),
                                onednn(),
                                shared_memory(),
                                disk(values["dir"].as<std::string>()),
                                gpu()};
  findings.push_back(alike(world));

  // Rank 0 tells its own findings, and the problems of others.
  std::string problems;
  for (const Finding& finding : findings) {
    if (finding.verdict == Verdict::problem)
      problems += fmt::format("{}: {}\n", finding.subject, finding.text);
  }
  const std::vector<std::string> everywhere = world.all_gather_texts(problems);
  const bool any =
      std::any_of(everywhere.begin(), everywhere.end(), [](const auto& text) { return !text.empty(); });
  if (world.rank() == 0) {
    nlohmann::json report = {
        {"findings", nlohmann::json::array()}, {"problems_by_rank", nlohmann::json::array()}, {"ok", !any}};
    for (std::size_t rank = 0; rank < everywhere.size(); ++rank) {
      const std::string& text = everywhere[rank];
      if (text.empty()) continue;
      report["problems_by_rank"].push_back({{"rank", rank}, {"text", text.substr(0, text.size() - 1)}});
    }
    for (const Finding& finding : findings) {
      report["findings"].push_back(
          {{"subject", finding.subject}, {"verdict", word(finding.verdict)}, {"text", finding.text}});
    }
    if (values.count("json")) {
      fmt::print("{}\n", report.dump(2));
    } else {
      for (const Finding& finding : findings)
        fmt::print("{:<8} {:<14} {}\n", word(finding.verdict), finding.subject, finding.text);
      for (std::size_t rank = 1; rank < everywhere.size(); ++rank) {
        if (!everywhere[rank].empty()) fmt::print("problem  on rank {}: {}", rank, everywhere[rank]);
      }
    }
  }
  return any ? static_cast<ExitCode>(1) : ExitCode::done;
}

}  // namespace lockstep::cli
