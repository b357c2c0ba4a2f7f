// Private to the module: where every rank of the world is, in memory that all processes of a node share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

#include "base/progress.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::train {

/// One rank. Those of other nodes are copies, as old as the last heartbeat.
struct alignas(128) RankRecord {
  progress::Record where;                            ///< by the thread that trains
  alignas(128) std::atomic<std::uint64_t> beats{0};  ///< by its watchdog: the process runs
  std::atomic<std::int32_t> pid{0};
  std::atomic<std::uint32_t> death_said{0};
};

struct alignas(128) BoardHead {
  /// How the job ends when somebody hangs: one watchdog of the node takes the word, the others follow.
  enum Verdict : std::uint32_t { none, being_said, said };
  static constexpr std::uint64_t right_magic = 0x6c6f636b73746570;  // "lockstep"

  std::uint64_t magic = right_magic;
  std::uint32_t ranks = 0;
  std::atomic<std::uint32_t> verdict{none};
};

/// The memory has no name once all have it, so nothing stays behind however the processes end.
class Board {
 public:
  /// Collective. Throws the same error on all ranks if there is no memory.
  explicit Board(comm::HostGroup& world);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  int ranks() const { return ranks_; }
  BoardHead& head() const { return *std::launder(reinterpret_cast<BoardHead*>(memory_)); }
  RankRecord& rank(int rank) const {
    return *std::launder(reinterpret_cast<RankRecord*>(memory_ + sizeof(BoardHead)) + rank);
  }

 private:
  std::byte* open(const std::string& name, bool make);

  int ranks_;
  int descriptor_ = -1;  // stays open: from outside the board is read through it
  std::byte* memory_ = nullptr;
};

}  // namespace lockstep::train
