// strike ID RANK PHASE SIGNAL [STEP]: sends a signal to that rank while it is in that phase (of that step or
// a later one), and prints "struck pid=... step=... phase=... at=NANOSECONDS". The rank is found by the
// environment variable LOCKSTEP_STRIKE=ID, its phase in the rank status table: the rank is stopped, its phase
// is read, and it continues if it has left the phase, so that the phase is certain. LAUNCHER-SIGNAL is sent
// to the parent of the rank instead. Exit code 3: the rank never reached the phase.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "train/watch/processes.h"
#include "train/watch/rank_status.h"

namespace {

using lockstep::train::RankStatusTable;
using Header = RankStatusTable::Header;
using Row = RankStatusTable::Row;

constexpr int timeout_s = 60;

bool late() {
  static const auto start = std::chrono::steady_clock::now();
  return std::chrono::steady_clock::now() - start > std::chrono::seconds(timeout_s);
}

bool has(const std::string& environment, const std::string& entry) {
  return environment.find('\0' + entry + '\0') != std::string::npos;
}

/// 0 if there is none (yet).
pid_t find_rank(const std::string& id, const std::string& rank) {
  DIR* const processes = ::opendir("/proc");
  pid_t found = 0;
  while (const dirent* const entry = ::readdir(processes)) {
    const int pid = std::atoi(entry->d_name);
    if (pid <= 0 || lockstep::train::name_of(pid) != "lockstep") continue;
    std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
    const std::string environment = '\0' + std::string(std::istreambuf_iterator<char>(file), {}) + '\0';
    if (has(environment, "LOCKSTEP_STRIKE=" + id) &&
        (has(environment, "OMPI_COMM_WORLD_RANK=" + rank) || has(environment, "PMI_RANK=" + rank)))
      found = pid;
  }
  ::closedir(processes);
  return found;
}

const Row* rows_of(const Header* table) { return reinterpret_cast<const Row*>(table + 1); }

/// The table that the process of the rank has open; nullptr if there is none yet.
const Header* open_table(pid_t pid, int rank) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  DIR* const files = ::opendir(folder.c_str());
  const Header* table = nullptr;
  while (const dirent* const entry = files ? ::readdir(files) : nullptr) {
    char target[256] = "";
    const std::string path = folder + "/" + entry->d_name;
    if (::readlink(path.c_str(), target, sizeof target - 1) < 0) continue;
    if (std::string(target).find("/dev/shm/lockstep-") == std::string::npos) continue;
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) continue;
    struct stat status {};
    const bool stands = ::fstat(descriptor, &status) == 0 && status.st_size > 0;
    const auto bytes = static_cast<std::size_t>(status.st_size);
    void* const memory = stands ? ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0) : MAP_FAILED;
    ::close(descriptor);
    if (memory == MAP_FAILED) continue;
    const auto* const header = static_cast<const Header*>(memory);
    if (header->magic == Header::right_magic && bytes >= sizeof(Header) + header->ranks * sizeof(Row))
      table = header;
  }
  if (files) ::closedir(files);
  return table && rows_of(table)[rank].pid.load() == pid ? table : nullptr;
}

/// Whether the watchdog of every rank of this node runs: before that nobody can name a rank.
bool all_watch(const Header* table) {
  for (std::uint32_t rank = 0; rank < table->ranks; ++rank) {
    const Row& row = rows_of(table)[rank];
    if (row.pid.load() != 0 && row.heartbeats.load() == 0) return false;
  }
  return true;
}

int signal_named(const std::string& name) {
  if (name == "STOP") return SIGSTOP;
  if (name == "CONT") return SIGCONT;  // waits for that moment, and changes nothing
  if (name == "KILL") return SIGKILL;
  if (name == "SEGV") return SIGSEGV;
  if (name == "TERM") return SIGTERM;
  if (name == "USR1") return SIGUSR1;
  if (name == "USR2") return SIGUSR2;
  if (name == "INT") return SIGINT;
  if (name == "PIPE") return SIGPIPE;
  if (name == "STALL") return SIGRTMIN + 9;  // see stall.cpp
  std::fprintf(stderr, "strike: no signal %s\n", name.c_str());
  std::exit(2);
}

[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "strike: %s\n", what);
  std::exit(3);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const std::string id = argv[1], rank = argv[2], phase = argv[3];
  const std::string to_launcher = "LAUNCHER-";
  const bool for_launcher = std::string(argv[4]).starts_with(to_launcher);
  const int signal = signal_named(argv[4] + (for_launcher ? to_launcher.size() : 0));
  const long step = argc > 5 ? std::atol(argv[5]) : 0;
  pid_t pid = 0;
  const Header* table = nullptr;
  while (!table) {
    if (late()) give_up("the rank did not start");
    pid = find_rank(id, rank);
    if (pid != 0) table = open_table(pid, std::atoi(rank.c_str()));
  }
  const Row* const row = rows_of(table) + std::atoi(rank.c_str());
  const auto there = [&] {
    return row->heartbeats.load() > 0 && row->step.load() >= step &&
           phase == lockstep::progress::to_string(row->current_phase());
  };
  while (true) {
    for (unsigned polls = 0; !there(); ++polls) {
      if (polls % 4096 == 0 && (late() || lockstep::train::state_of(pid).gone()))
        give_up("the rank never reached the phase");
    }
    ::kill(pid, SIGSTOP);
    while (true) {
      const lockstep::train::ProcessState state = lockstep::train::state_of(pid);
      if (state.letter == 'T') break;
      if (state.gone()) give_up("the rank ended");
    }
    while (there() && !all_watch(table)) {
      if (!late()) continue;
      ::kill(pid, SIGCONT);
      give_up("other ranks have no watchdog");
    }
    if (there()) break;
    ::kill(pid, SIGCONT);
  }
  std::printf("struck pid=%d step=%lld phase=%s bucket=%lld waiting=%lld at=%lld\n", pid,
              static_cast<long long>(row->step.load()), phase.c_str(),
              static_cast<long long>(row->bucket.load()), static_cast<long long>(row->waiting.load()),
              static_cast<long long>(std::chrono::system_clock::now().time_since_epoch().count()));
  std::fflush(stdout);
  if (signal == SIGSTOP) return 0;
  if (for_launcher) {
    ::kill(lockstep::train::parent_of(pid), signal);
  } else {
    ::syscall(SYS_tgkill, pid, pid, signal);  // the thread that trains
  }
  ::kill(pid, SIGCONT);
  return 0;
}
