// strike ID RANK PHASE SIGNAL [STEP]: sends a signal to that rank while it is in that phase (of that step or
// a later one), and prints "struck pid=... step=... phase=... at=NANOSECONDS". The rank is found by the
// environment variable LOCKSTEP_STRIKE=ID, and where it is by its board: it is stopped first, looked at, and
// let continue if it has left the phase, so that the phase is sure. LAUNCHER-SIGNAL: goes to its parent,
// then. Exit code 3: no such rank came there.
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

#include "train/board.h"
#include "train/processes.h"

namespace {

using lockstep::progress::Phase;
using lockstep::train::BoardHead;
using lockstep::train::RankRecord;

constexpr int patience_s = 60;

bool late() {
  static const auto start = std::chrono::steady_clock::now();
  return std::chrono::steady_clock::now() - start > std::chrono::seconds(patience_s);
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
    if (has(environment, "LOCKSTEP_STRIKE=" + id) && has(environment, "OMPI_COMM_WORLD_RANK=" + rank))
      found = pid;
  }
  ::closedir(processes);
  return found;
}

const RankRecord* records_of(const BoardHead* board) {
  return reinterpret_cast<const RankRecord*>(board + 1);
}

/// The board of the rank as its process has it open; none if it has not (yet).
const BoardHead* open_board(pid_t pid, int rank) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  DIR* const files = ::opendir(folder.c_str());
  const BoardHead* board = nullptr;
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
    const auto* const head = static_cast<const BoardHead*>(memory);
    if (head->magic == BoardHead::right_magic &&
        bytes >= sizeof(BoardHead) + head->ranks * sizeof(RankRecord))
      board = head;
  }
  if (files) ::closedir(files);
  return board && records_of(board)[rank].pid.load() == pid ? board : nullptr;
}

/// Whether the watchdog of every rank of this machine lives: before that nobody is there to name a rank.
bool all_watch(const BoardHead* board) {
  for (std::uint32_t rank = 0; rank < board->ranks; ++rank) {
    const RankRecord& record = records_of(board)[rank];
    if (record.pid.load() != 0 && record.beats.load() == 0) return false;
  }
  return true;
}

int signal_named(const std::string& name) {
  if (name == "STOP") return SIGSTOP;
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
  const BoardHead* board = nullptr;
  while (!board) {
    if (late()) give_up("the rank did not start");
    pid = find_rank(id, rank);
    if (pid != 0) board = open_board(pid, std::atoi(rank.c_str()));
  }
  const RankRecord* const record = records_of(board) + std::atoi(rank.c_str());
  const auto there = [&] {
    return record->beats.load() > 0 && record->where.step.load() >= step &&
           phase == lockstep::progress::to_string(record->where.phase.load());
  };
  while (true) {
    for (unsigned looks = 0; !there(); ++looks) {
      if (looks % 4096 == 0 && (late() || lockstep::train::state_of(pid).gone()))
        give_up("the rank never came there");
    }
    ::kill(pid, SIGSTOP);
    while (true) {
      const lockstep::train::ProcessState state = lockstep::train::state_of(pid);
      if (state.letter == 'T') break;
      if (state.gone()) give_up("the rank ended");
    }
    while (there() && !all_watch(board)) {
      if (!late()) continue;
      ::kill(pid, SIGCONT);
      give_up("other ranks have no watchdog");
    }
    if (there()) break;
    ::kill(pid, SIGCONT);
  }
  std::printf("struck pid=%d step=%lld phase=%s bucket=%d waiting=%u at=%lld\n", pid,
              static_cast<long long>(record->where.step.load()), phase.c_str(), record->where.bucket.load(),
              record->where.waiting.load(),
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
