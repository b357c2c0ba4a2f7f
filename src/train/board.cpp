#include "train/board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::train {
namespace {

std::size_t bytes_of(int ranks) {
  return sizeof(BoardHead) + static_cast<std::size_t>(ranks) * sizeof(RankRecord);
}

/// Unlike any other of this machine: no two processes of one name space share pid and time.
std::string new_name() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return fmt::format("/lockstep-{}-{:x}{:08x}", ::getpid(), now.tv_sec, now.tv_nsec);
}

}  // namespace

Board::Board(comm::HostGroup& world) : ranks_(world.size()) {
  const comm::Topology& topology = world.topology();
  const auto me = static_cast<std::size_t>(world.rank());
  const bool first = topology.local_rank_of_rank[me] == 0;
  const std::string mine = first ? new_name() : "";
  std::string failed;
  if (first) {
    try {
      memory_ = open(mine, true);
    } catch (const std::exception& error) {
      failed = error.what();
    }
  }
  // Also the barrier between making and opening.
  const std::vector<std::string> names = world.all_gather_texts(mine);
  const auto named = [&] {
    for (std::size_t rank = 0; rank < names.size(); ++rank) {
      if (topology.node_of_rank[rank] == topology.node_of_rank[me] && topology.local_rank_of_rank[rank] == 0)
        return names[rank];
    }
    return std::string();
  };
  try {
    comm::run_on_all(world, [&] {
      if (!failed.empty()) throw UsageError("{}", failed);
      if (!first) memory_ = open(named(), false);
    });
  } catch (...) {
    if (first) ::shm_unlink(mine.c_str());
    if (memory_) ::munmap(memory_, bytes_of(ranks_));
    if (descriptor_ >= 0) ::close(descriptor_);
    throw;
  }
  if (first) ::shm_unlink(mine.c_str());
}

Board::~Board() {
  ::munmap(memory_, bytes_of(ranks_));
  ::close(descriptor_);
}

std::byte* Board::open(const std::string& name, bool make) {
  const std::size_t bytes = bytes_of(ranks_);
  descriptor_ = ::shm_open(name.c_str(), O_RDWR | (make ? O_CREAT | O_EXCL : 0), 0600);
  const int allocated = descriptor_ < 0 ? errno
                        : make          ? ::posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes))
                                        : 0;
  void* const memory = allocated != 0
                           ? MAP_FAILED
                           : ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory == MAP_FAILED) {
    const int error = allocated != 0 ? allocated : errno;
    if (make && descriptor_ >= 0) ::shm_unlink(name.c_str());
    throw UsageError("/dev/shm: no {} bytes of shared memory for the watchdog: {}; make room there", bytes,
                     std::strerror(error));
  }
  if (make) {
    auto* const head = new (memory) BoardHead;
    head->ranks = static_cast<std::uint32_t>(ranks_);
    for (int rank = 0; rank < ranks_; ++rank)
      new (static_cast<std::byte*>(memory) + sizeof(BoardHead) +
           static_cast<std::size_t>(rank) * sizeof(RankRecord)) RankRecord;
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace lockstep::train
