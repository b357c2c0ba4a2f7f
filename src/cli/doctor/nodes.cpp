// What the machines of a run share: the run directory, its locks, and the time.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/clock.h"
#include "cli/doctor/finding.h"

namespace lockstep::cli::checkup {
namespace {

double wall_clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool first_of_node(const comm::HostGroup& world, std::size_t rank) {
  return world.topology().local_rank_of_rank[rank] == 0;
}

const std::string& host_of(const comm::HostGroup& world, std::size_t rank) {
  const comm::Topology& topology = world.topology();
  return topology.host_names[static_cast<std::size_t>(topology.node_of_rank[rank])];
}

/// File systems between machines show new names with some delay.
bool appears(const std::string& path) {
  const double deadline_s = monotonic_s() + 2;
  struct stat info {};
  while (::stat(path.c_str(), &info) != 0) {
    if (monotonic_s() > deadline_s) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

/// "absent", "free" (its lock could be had) or "held".
std::string state_of(const std::string& path) {
  if (!appears(path)) return "absent";
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return "absent";
  const bool had = ::flock(file, LOCK_EX | LOCK_NB) == 0;
  ::close(file);
  return had ? "free" : "held";
}

}  // namespace

Findings clocks(comm::HostGroup& world) {
  if (world.topology().nodes() == 1) return {};
  constexpr int rounds = 9;
  std::vector<std::vector<double>> ahead(static_cast<std::size_t>(world.size()));
  for (int round = 0; round < rounds; ++round) {
    world.barrier();
    const double now_s = wall_clock_s();
    std::vector<double> all(ahead.size());
    world.all_gather(&now_s, sizeof now_s, all.data());
    for (std::size_t rank = 0; rank < all.size(); ++rank) ahead[rank].push_back(all[rank] - all[0]);
  }
  std::size_t worst = 0;
  double skew_s = 0;
  for (std::size_t rank = 0; rank < ahead.size(); ++rank) {
    const double s = median(ahead[rank]);
    if (std::abs(s) <= std::abs(skew_s)) continue;
    skew_s = s;
    worst = rank;
  }
  const std::string text = fmt::format("{} is {:.1f} s {} of {}", host_of(world, worst), std::abs(skew_s),
                                       skew_s > 0 ? "ahead" : "behind", host_of(world, 0));
  constexpr double note_s = 1, problem_s = 60;
  if (std::abs(skew_s) >= problem_s)
    return {
        {"clocks", Verdict::problem, text, "set the time (chrony, ntpd): Slurm's credentials expire by it"}};
  if (std::abs(skew_s) >= note_s)
    return {{"clocks", Verdict::note, text, "set the time (chrony, ntpd): logs do not line up"}};
  return {{"clocks", Verdict::ok,
           fmt::format("within {:.0f} ms on {} machines", std::ceil(std::abs(skew_s) * 1e3),
                       world.topology().nodes()),
           ""}};
}

Findings shared_directory(comm::HostGroup& world, const Scene& scene) {
  if (world.topology().nodes() == 1) return {};
  const char* const subject = "shared directory";
  const auto rank = static_cast<std::size_t>(world.rank());
  // Rank 0 makes a file and locks it; the first rank of every other machine looks for it in its own place.
  std::string name;
  int file = -1;
  if (rank == 0) {
    name = fmt::format(".lockstep-doctor-{}-{}-{:.6f}", host_of(world, 0), getpid(), wall_clock_s());
    file = ::open((scene.place + "/" + name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0 || ::flock(file, LOCK_EX | LOCK_NB) != 0) name.clear();
  }
  name = world.all_gather_texts(name)[0];
  std::string state;
  if (!name.empty() && rank != 0 && first_of_node(world, rank)) state = state_of(scene.place + "/" + name);
  const std::vector<std::string> states = world.all_gather_texts(state);
  if (file >= 0) {
    ::close(file);
    ::unlink((scene.place + "/" + name).c_str());
  }
  if (name.empty()) return {};  // the run directory's own lines say why
  std::vector<std::string> absent, unlocked;
  for (std::size_t other = 0; other < states.size(); ++other) {
    if (states[other] == "absent") absent.push_back(host_of(world, other));
    if (states[other] == "free") unlocked.push_back(host_of(world, other));
  }
  if (!absent.empty()) {
    return {{subject, Verdict::problem,
             fmt::format("{}: what {} writes there is not seen on {}", scene.run, host_of(world, 0),
                         fmt::join(absent, ", ")),
             "keep the run on a file system that all machines mount: all ranks write one checkpoint file"}};
  }
  if (!unlocked.empty()) {
    return {{subject, Verdict::note,
             fmt::format("{}: a lock that {} holds is not seen on {}", scene.run, host_of(world, 0),
                         fmt::join(unlocked, ", ")),
             "never start two jobs on one run directory: they may not notice each other"}};
  }
  return {{subject, Verdict::ok, fmt::format("{}: files and locks are seen on all machines", scene.run), ""}};
}

}  // namespace lockstep::cli::checkup
