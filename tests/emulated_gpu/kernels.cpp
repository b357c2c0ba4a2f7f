#include "kernels.h"

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "counting.h"
#include "races.h"
#include "runtime.h"
#include "streams.h"

namespace lockstep::emulated_gpu {
namespace {

namespace context = boost::context;

constexpr unsigned max_threads = 1024;
constexpr std::size_t shared_bytes_unasked = 48 * 1024;
constexpr std::size_t stack_bytes = 128 * 1024;

/// What cudaFuncSetAttribute allowed, by kernel.
std::map<const void*, std::size_t>& allowed() {
  static auto& made = *new std::map<const void*, std::size_t>;
  return made;
}
std::size_t allowed_shared(const void* function) {
  const auto found = allowed().find(function);
  return found == allowed().end() ? shared_bytes_unasked : found->second;
}

/// Carries out one block after another.
class Device {
 public:
  void run(const Launched& launched);
  void meet_block();
  void meet_warp();
  const void* exchange(const void* mine, std::size_t bytes, unsigned mask, int lane);
  int lane() const { return static_cast<int>(running_ % warp_lanes); }
  void* shared_memory() { return shared_.data(); }
  void begin_shared(void* first, std::size_t bytes);

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
  /// A number from 0 for each block of the launch, in the order in which they run.
  const std::vector<unsigned>& drawn_order();
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
  std::vector<std::pair<std::byte*, std::size_t>> fixed_shared_;  // that the block has begun
  std::vector<unsigned> order_;
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
  if (empty || block.x * block.y * block.z > max_threads || block.z > 64 || grid.y > 65535 ||
      grid.z > 65535 || grid.x > 0x7fffffffu)
    refuse("no GPU takes such a launch");
  for (const void* const operand : launched.operands) {
    if (freed(operand, 1)) refuse("an operand is in memory that was freed");
    if (out_of_reach(operand, launched.device)) refuse("an operand is in the memory of another device");
  }
}

void Device::run(const Launched& launched) {
  if (faults().good_launches >= 0 && faults().good_launches-- == 0) faults().broken = cudaErrorIllegalAddress;
  if (faults().broken != cudaSuccess) return;
  launched_ = &launched;
  check(launched);
  ++launches_;
  gridDim = launched.grid;
  blockDim = launched.block;
  while (threads_.size() < threads()) threads_.push_back(std::make_unique<Thread>());
  const auto run_one = [&](unsigned number) {
    blockIdx = {number % gridDim.x, number / gridDim.x % gridDim.y, number / gridDim.x / gridDim.y};
    races().begin_block(number);
    run_block();
  };
  if (counting().on()) {
    const unsigned blocks = counting().begin_launch(launched.kernel, launched.grid, launched.block);
    for (unsigned number = 0; number < blocks; ++number) run_one(number);
    return counting().end_launch();
  }
  races().begin_launch(launched.kernel);
  for (const unsigned number : drawn_order()) run_one(number);
  races().end_launch();
}

const std::vector<unsigned>& Device::drawn_order() {
  order_.resize(std::size_t{gridDim.x} * gridDim.y * gridDim.z);
  std::iota(order_.begin(), order_.end(), 0u);
  for (std::size_t left = order_.size(); left > 1; --left)
    std::swap(order_[left - 1], order_[static_cast<std::size_t>(draw() % left)]);
  return order_;
}

void Device::begin_shared(void* first, std::size_t bytes) {
  auto* const room = static_cast<std::byte*>(first);
  std::size_t in_use = bytes + launched_->shared_bytes;
  for (const auto& [begun, its_bytes] : fixed_shared_) {
    if (begun == room) return;
    in_use += its_bytes;
  }
  if (in_use > std::max(shared_bytes_unasked, allowed_shared(launched_->function)))
    refuse("more shared memory, with that of a fixed size, than was asked for");
  fixed_shared_.emplace_back(room, bytes);
  std::memset(room, 0xff, bytes);  // NaNs
  races().ignore(room, bytes);
}

void Device::run_block() {
  const unsigned count = threads();
  warps_.assign((count + warp_lanes - 1) / warp_lanes, {});
  block_ = {};
  shared_.resize((launched_->shared_bytes + 7) / 8);
  std::memset(shared_.data(), 0xff, launched_->shared_bytes);  // NaNs
  fixed_shared_.clear();
  races().ignore(shared_.data(), launched_->shared_bytes);
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
  races().in_kernel(true);
  on.fiber = std::move(on.fiber).resume();
  races().in_kernel(false);
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

void Device::meet_warp() {
  const unsigned warp = running_ / warp_lanes;
  if ((warp + 1) * warp_lanes > threads())
    refuse("a warp without all of its lanes waits, or exchanges values");
  meet(warps_[warp], warp_lanes);
}

const void* Device::exchange(const void* mine, std::size_t bytes, unsigned mask, int lane) {
  if (mask != 0xffffffffu) refuse("only whole warps are emulated");
  const unsigned first = running_ / warp_lanes * warp_lanes;
  const auto place = static_cast<std::size_t>(threads_[running_]->exchanges++ % 2);
  std::memcpy(threads_[running_]->given[place].data(), mine, bytes);
  meet_warp();
  return threads_[first + static_cast<unsigned>(lane)]->given[place].data();
}

Device& device() {
  static Device& made = *new Device;  // its fibers have no end
  return made;
}

}  // namespace

void launch(cudaStream_t stream, Launched launched) {
  {
    const Turn turn = take_turn();
    launched.device = device_of(stream);
    if (launched.device != current_device()) {
      failed(cudaErrorInvalidResourceHandle);
      return;
    }
    if (launched.shared_bytes > allowed_shared(launched.function)) {
      failed(cudaErrorInvalidValue);
      return;
    }
  }
  enqueue(stream, [launched = std::move(launched)] { device().run(launched); });
}
void meet_block() { device().meet_block(); }
void meet_warp() { device().meet_warp(); }
const void* exchange(const void* mine, std::size_t bytes, unsigned mask, int lane) {
  return device().exchange(mine, bytes, mask, lane);
}
int lane_of_thread() { return device().lane(); }
void* shared_memory() { return device().shared_memory(); }
void begin_shared(void* first, std::size_t bytes) { device().begin_shared(first, bytes); }
cudaError_t allow_shared(const void* function, int bytes) {
  const Turn turn = take_turn();
  if (!function || bytes < 0 || static_cast<std::size_t>(bytes) > faults().shared_bytes)
    return failed(cudaErrorInvalidValue);
  allowed()[function] = std::max(shared_bytes_unasked, static_cast<std::size_t>(bytes));
  return cudaSuccess;
}

}  // namespace lockstep::emulated_gpu
