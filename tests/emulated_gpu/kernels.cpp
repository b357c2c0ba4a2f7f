#include "kernels.h"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "runtime.h"
#include "streams.h"

namespace lockstep::emulated_gpu {
namespace {

namespace context = boost::context;

constexpr unsigned most_threads = 1024;
constexpr std::size_t most_shared_bytes = 227 * 1024;  // as an H100 has
constexpr std::size_t stack_bytes = 128 * 1024;

/// Carries out one block after another.
class Device {
 public:
  void run(const Launched& launched);
  void meet_block();
  const void* exchange(const void* mine, std::size_t bytes, unsigned mask, int lane);
  int lane() const { return static_cast<int>(running_ % warp_lanes); }
  void* shared_memory() { return shared_.data(); }

 private:
  struct Thread {
    context::fiber fiber;
    bool done = true;
    int exchanges = 0;
    std::array<std::array<std::byte, 8>, 2> given;  // by the parity of the exchange: peers may read the last
  };
  /// A number of threads that have to arrive before any continues.
  struct Meeting {
    unsigned arrived = 0, turn = 0;
  };

  void check(const Launched& launched) const;
  void run_block();
  /// As far as it comes without the others; returns how many of its threads have ended.
  unsigned run_warp(unsigned warp, bool falling);
  void take_turn(unsigned thread);
  void yield();
  void meet(Meeting& meeting, unsigned threads);
  [[noreturn]] void refuse(const char* why) const;
  unsigned threads() const { return blockDim.x * blockDim.y * blockDim.z; }

  const Launched* launched_ = nullptr;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Meeting> warps_;
  Meeting block_;
  unsigned running_ = 0;
  unsigned launches_ = 0;
  unsigned meetings_ = 0;  // that were complete
  context::fiber scheduler_;
  std::vector<double> shared_;
};

void Device::refuse(const char* why) const {
  std::fprintf(stderr, "emulated GPU: %s, grid %u x %u x %u, block %u x %u x %u: %s (block %u, thread %u)\n",
               launched_->kernel, launched_->grid.x, launched_->grid.y, launched_->grid.z, launched_->block.x,
               launched_->block.y, launched_->block.z, why, blockIdx.x, threadIdx.x);
  std::abort();
}

void Device::check(const Launched& launched) const {
  const dim3 &grid = launched.grid, &block = launched.block;
  const bool empty =
      grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0;
  if (empty || block.x * block.y * block.z > most_threads || block.z > 64 || grid.y > 65535 ||
      grid.z > 65535 || grid.x > 0x7fffffffu)
    refuse("no GPU takes such a launch");
  if (launched.shared_bytes > most_shared_bytes) refuse("no GPU has so much shared memory");
  for (const void* const operand : launched.operands) {
    if (freed(operand, 1)) refuse("an operand is in memory that was freed");
  }
}

void Device::run(const Launched& launched) {
  launched_ = &launched;
  check(launched);
  ++launches_;
  gridDim = launched.grid;
  blockDim = launched.block;
  while (threads_.size() < threads()) threads_.push_back(std::make_unique<Thread>());
  for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) run_block();
    }
  }
}

void Device::run_block() {
  const unsigned count = threads();
  warps_.assign((count + warp_lanes - 1) / warp_lanes, {});
  block_ = {};
  shared_.resize((launched_->shared_bytes + 7) / 8);
  std::memset(shared_.data(), 0xff, launched_->shared_bytes);  // NaNs
  for (unsigned thread = 0; thread < count; ++thread) {
    threads_[thread]->done = false;
    threads_[thread]->exchanges = 0;
  }
  const bool falling = (launches_ + blockIdx.x + blockIdx.y + blockIdx.z) % 2 != 0;
  const auto warps = static_cast<unsigned>(warps_.size());
  for (unsigned left = count; left > 0;) {
    const unsigned before = left, meetings = meetings_;
    for (unsigned turn = 0; turn < warps; ++turn)
      left -= run_warp(falling ? warps - 1 - turn : turn, falling);
    if (left == before && meetings_ == meetings)
      refuse("threads wait for others that have ended or wait elsewhere");
  }
}

unsigned Device::run_warp(unsigned warp, bool falling) {
  const unsigned first = warp * warp_lanes, lanes = std::min(threads() - first, unsigned{warp_lanes});
  unsigned ended = 0;
  for (bool moves = true; moves;) {
    const unsigned before = ended, meetings = meetings_;
    for (unsigned turn = 0; turn < lanes; ++turn) {
      const unsigned thread = first + (falling ? lanes - 1 - turn : turn);
      if (threads_[thread]->done) continue;
      take_turn(thread);
      if (threads_[thread]->done) ++ended;
    }
    moves = ended > before || meetings_ > meetings;
  }
  return ended;
}

/// A fiber goes from thread to thread: it begins at the launch's next one when it is resumed.
void Device::take_turn(unsigned thread) {
  running_ = thread;
  threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
  Thread& on = *threads_[thread];
  if (!on.fiber) {
    on.fiber = context::fiber(std::allocator_arg, context::protected_fixedsize_stack(stack_bytes),
                              [this, &on](context::fiber&& scheduler) {
                                scheduler_ = std::move(scheduler);
                                for (;;) {
                                  launched_->thread();
                                  on.done = true;
                                  scheduler_ = std::move(scheduler_).resume();
                                }
                                return std::move(scheduler_);
                              });
  }
  on.fiber = std::move(on.fiber).resume();
}

void Device::yield() { scheduler_ = std::move(scheduler_).resume(); }

void Device::meet(Meeting& meeting, unsigned threads) {
  const unsigned turn = meeting.turn;
  if (++meeting.arrived == threads) {
    meeting.arrived = 0;
    ++meeting.turn;
    ++meetings_;
    return;
  }
  while (meeting.turn == turn) yield();
}

void Device::meet_block() { meet(block_, threads()); }

const void* Device::exchange(const void* mine, std::size_t bytes, unsigned mask, int lane) {
  if (mask != 0xffffffffu) refuse("only whole warps are emulated");
  const unsigned warp = running_ / warp_lanes, first = warp * warp_lanes;
  if (first + warp_lanes > threads()) refuse("a warp without all of its lanes exchanges values");
  const auto place = static_cast<std::size_t>(threads_[running_]->exchanges++ % 2);
  std::memcpy(threads_[running_]->given[place].data(), mine, bytes);
  meet(warps_[warp], warp_lanes);
  return threads_[first + static_cast<unsigned>(lane)]->given[place].data();
}

Device& device() {
  static Device& made = *new Device;  // its fibers have no end
  return made;
}

}  // namespace

void launch(cudaStream_t stream, Launched launched) {
  enqueue(stream, [launched = std::move(launched)] { device().run(launched); });
}
void meet_block() { device().meet_block(); }
const void* exchange(const void* mine, std::size_t bytes, unsigned mask, int lane) {
  return device().exchange(mine, bytes, mask, lane);
}
int lane_of_thread() { return device().lane(); }
void* shared_memory() { return device().shared_memory(); }

}  // namespace lockstep::emulated_gpu
