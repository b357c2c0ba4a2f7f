// Memory of the emulated GPU, and pinned memory: known by its ranges. What was never written, or was freed,
// is NaNs in every floating-point type. No device has access to the memory of another one.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "capture.h"
#include "counting.h"
#include "runtime.h"
#include "streams.h"

namespace lockstep::emulated_gpu {
namespace {

constexpr int poison = 0xff;
/// Zeros, of whole pages without a write.
void empty(void* first, std::size_t bytes) {
  constexpr std::uintptr_t page = 4096;
  auto* const memory = static_cast<std::byte*>(first);
  const auto begin = reinterpret_cast<std::uintptr_t>(first), whole = (begin + page - 1) / page * page;
  if (whole + page > begin + bytes) {
    std::memset(memory, 0, bytes);
    return;
  }
  const std::uintptr_t end = (begin + bytes) / page * page;
  std::memset(memory, 0, whole - begin);
  ::madvise(memory + (whole - begin), end - whole, MADV_DONTNEED);
  std::memset(memory + (end - begin), 0, begin + bytes - end);
}
/// Memory that was not written. Where work is counted it stays the zeros that it is from the start.
void spoil(void* first, std::size_t bytes) {
  if (!counting().on()) std::memset(first, poison, bytes);
}
constexpr std::size_t alignment = 512;
constexpr std::size_t kept_bytes = std::size_t{64}
                                   << 20;  // of freed memory, until it may be handed out again

enum class Kind { pageable, pinned, device };

struct Range {
  std::size_t bytes = 0;
  Kind kind = Kind::device;
  int device = 0;           ///< of memory of that kind
  bool free_asked = false;  ///< in the order of some stream that has not come to it
  bool of_graph = false;    ///< allocated in a capture: there until the graph has gone
};

/// Address space whose pages are made when they are written.
std::byte* zeros(std::size_t bytes) {
  void* const first =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return first == MAP_FAILED ? nullptr : static_cast<std::byte*>(first);
}

class Memory {
 public:
  /// Null if there is none.
  std::byte* allocate(std::size_t bytes, Kind kind, int device);
  /// Of what begins there; null if nothing does that is in use.
  Range* in_use(const void* first);
  /// In which kind of memory all of it is; nothing if it leaves its range, or was freed.
  std::optional<Kind> kind_of(const void* first, std::size_t bytes) const;
  /// The same for who asks now: nothing, too, if it was asked to be freed.
  std::optional<Kind> kind_for_use(const void* first, std::size_t bytes) const;
  bool freed(const void* first, std::size_t bytes) const {
    const auto* const begin = static_cast<const std::byte*>(first);
    return overlapping(freed_, begin, bytes) != freed_.end() &&
           overlapping(live_, begin, bytes) == live_.end();
  }
  bool out_of_reach(const void* address, int device) const {
    const auto range = overlapping(live_, static_cast<const std::byte*>(address), 1);
    return range != live_.end() && range->second.kind == Kind::device && range->second.device != device;
  }
  std::size_t pieces_in_use() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        live_, [](const auto& one) { return one.second.kind == Kind::device && !one.second.free_asked; }));
  }
  void release(const void* first);

 private:
  using Ranges = std::map<const std::byte*, Range>;
  static Ranges::const_iterator overlapping(const Ranges& ranges, const std::byte* first, std::size_t bytes);
  void let_go_of_oldest();

  Ranges live_, freed_;
  std::deque<std::byte*> freed_in_order_;
  std::size_t freed_bytes_ = 0;
};

std::byte* Memory::allocate(std::size_t bytes, Kind kind, int device) {
  if (kind == Kind::device && bytes > faults().free_bytes) return nullptr;
  const std::size_t size = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  auto* const first =
      counting().on() ? zeros(size) : static_cast<std::byte*>(std::aligned_alloc(alignment, size));
  if (!first) return nullptr;
  live_[first] = {.bytes = bytes, .kind = kind, .device = device};
  return first;
}

Range* Memory::in_use(const void* first) {
  const auto found = live_.find(static_cast<const std::byte*>(first));
  return found == live_.end() || found->second.free_asked ? nullptr : &found->second;
}

Memory::Ranges::const_iterator Memory::overlapping(const Ranges& ranges, const std::byte* first,
                                                   std::size_t bytes) {
  const auto next = ranges.lower_bound(first + bytes);
  if (next == ranges.begin()) return ranges.end();
  const auto before = std::prev(next);
  return before->first + before->second.bytes > first ? before : ranges.end();
}

std::optional<Kind> Memory::kind_of(const void* first, std::size_t bytes) const {
  const auto* const begin = static_cast<const std::byte*>(first);
  const auto range = overlapping(live_, begin, bytes);
  if (range != live_.end()) {
    const bool inside = range->first <= begin && begin + bytes <= range->first + range->second.bytes;
    return inside ? std::optional(range->second.kind) : std::nullopt;
  }
  return overlapping(freed_, begin, bytes) == freed_.end() ? std::optional(Kind::pageable) : std::nullopt;
}

std::optional<Kind> Memory::kind_for_use(const void* first, std::size_t bytes) const {
  const auto range = overlapping(live_, static_cast<const std::byte*>(first), bytes);
  return range != live_.end() && range->second.free_asked ? std::nullopt : kind_of(first, bytes);
}

void Memory::release(const void* first) {
  const auto range = live_.find(static_cast<const std::byte*>(first));
  auto* const memory = const_cast<std::byte*>(range->first);
  if (counting().on()) {
    ::munmap(memory, std::max<std::size_t>(range->second.bytes, 1));
    live_.erase(range);
    return;
  }
  spoil(memory, range->second.bytes);
  freed_bytes_ += range->second.bytes;
  freed_in_order_.push_back(memory);
  freed_.insert(live_.extract(range));
  while (freed_bytes_ > kept_bytes) let_go_of_oldest();
}

void Memory::let_go_of_oldest() {
  std::byte* const memory = freed_in_order_.front();
  const auto range = freed_.find(memory);
  const std::size_t bytes = range->second.bytes;
  if (bytes > 0 && (memory[0] != std::byte{poison} || std::memcmp(memory, memory + 1, bytes - 1) != 0))
    refuse("memory was written to after it was freed");
  freed_bytes_ -= bytes;
  freed_in_order_.pop_front();
  freed_.erase(range);
  std::free(memory);
}

Memory& memory() {
  static Memory& made = *new Memory;  // threads may use it to the very end
  return made;
}

cudaError_t allocate(void** made, std::size_t bytes, Kind kind, int device = current_device()) {
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  if (kind == Kind::device && faults().memory != cudaSuccess) return failed(faults().memory);
  if (kind == Kind::device && faults().good_allocations >= 0 && faults().good_allocations-- == 0)
    return failed(cudaErrorMemoryAllocation);
  *made = memory().allocate(bytes, kind, device);
  return *made ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

/// Filled when the stream comes to it: who uses it before then, on another stream, loses what it wrote.
cudaError_t allocate_in_order(void** made, std::size_t bytes, cudaStream_t stream) {
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = allocate(made, bytes, Kind::device, device_of(stream)); error != cudaSuccess)
    return error;
  if (Capture* const capture = capture_of(stream)) {  // it is the graph's
    capture->take_memory(*made);
    memory().in_use(*made)->of_graph = true;
  }
  enqueue(stream, [first = *made, bytes] { spoil(first, bytes); });
  return cudaSuccess;
}

/// Of a graph's, which keeps it for its next launch.
cudaError_t release_in_capture(void* first, Range* range, Capture& capture, cudaStream_t stream) {
  if (!capture.owns(first)) return failed(cudaErrorInvalidValue);
  range->free_asked = true;
  enqueue(stream, [first, bytes = range->bytes] { spoil(first, bytes); });
  return cudaSuccess;
}

cudaError_t release(void* first, Kind kind) {
  if (spoils_capture()) return failed(cudaErrorStreamCaptureUnsupported);
  if (!first) return cudaSuccess;
  const Range* const range = memory().in_use(first);
  if (!range || range->kind != kind || range->of_graph) return failed(cudaErrorInvalidValue);
  memory().release(first);
  return cudaSuccess;
}

bool fits(cudaMemcpyKind kind, Kind to, Kind from) {
  const bool to_device = to == Kind::device, from_device = from == Kind::device;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    default:
      return kind == cudaMemcpyDefault;
  }
}

/// When a copy's turn has come.
void check_still_there(const void* first, std::size_t bytes, Kind kind) {
  if (kind != Kind::pageable && memory().kind_of(first, bytes) != kind)
    refuse("a copy, or a fill, of memory that was freed before its turn came");
}

}  // namespace

std::size_t pieces_in_use() {
  const Turn turn = take_turn();
  return memory().pieces_in_use();
}

bool freed(const void* first, std::size_t bytes) {
  const Turn turn = take_turn();
  return memory().freed(first, bytes);
}

bool out_of_reach(const void* address, int device) {
  const Turn turn = take_turn();
  return memory().out_of_reach(address, device);
}

void require_within_reach(std::initializer_list<const void*> operands) {
  for (const void* const operand : operands) {
    if (out_of_reach(operand, current_device()))
      refuse("an operand of a library is in the memory of another device");
  }
}

Program::~Program() {
  const Turn turn = take_turn();
  for (void* const first : memory) emulated_gpu::memory().release(first);
}

}  // namespace lockstep::emulated_gpu

using namespace lockstep::emulated_gpu;

extern "C" {

cudaError_t cudaMalloc(void** made, std::size_t bytes) {
  const Turn turn = take_turn();
  if (capture_mode() != cudaStreamCaptureModeRelaxed && spoils_capture())
    return failed(cudaErrorStreamCaptureUnsupported);
  const cudaError_t error = allocate(made, bytes, Kind::device);
  if (error == cudaSuccess) spoil(*made, bytes);
  return error;
}
cudaError_t cudaMallocHost(void** made, std::size_t bytes) {
  const Turn turn = take_turn();
  if (spoils_capture()) return failed(cudaErrorStreamCaptureUnsupported);
  const cudaError_t error = allocate(made, bytes, Kind::pinned);
  if (error == cudaSuccess) spoil(*made, bytes);
  return error;
}
cudaError_t cudaMallocAsync(void** made, std::size_t bytes, cudaStream_t stream) {
  const Turn turn = take_turn();
  return allocate_in_order(made, bytes, stream);
}
/// Waits for the memory's device first.
cudaError_t cudaFree(void* first) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  if (spoils_capture()) return failed(cudaErrorStreamCaptureUnsupported);
  if (const Range* const range = memory().in_use(first)) finish_all(range->device);
  return release(first, Kind::device);
}
/// Waits for nothing: copies that are still to come find that it has gone.
cudaError_t cudaFreeHost(void* first) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  return release(first, Kind::pinned);
}
cudaError_t cudaFreeAsync(void* first, cudaStream_t stream) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);
  if (!first) return cudaSuccess;
  Range* const range = memory().in_use(first);
  if (!range || range->kind != Kind::device) return failed(cudaErrorInvalidValue);
  if (Capture* const capture = capture_of(stream)) return release_in_capture(first, range, *capture, stream);
  if (range->of_graph) return failed(cudaErrorInvalidValue);
  range->free_asked = true;
  enqueue(stream, [first] { memory().release(first); });
  return cudaSuccess;
}

/// What the host reads where next to nothing was computed: zeros, so that results of two ways do not differ,
/// but a loss of one and a count of one where it may read these.
static void read_uncounted(void* to, std::size_t bytes) {
  constexpr std::array loss{1.0, 1.0};
  std::memset(to, 0, bytes);
  if (bytes == sizeof loss) std::memcpy(to, loss.data(), bytes);
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = faults().free_bytes;
  return cudaSuccess;
}

/// Pageable memory is read at once, and written before this returns; any other when the stream comes to it.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  const auto target = memory().kind_for_use(to, bytes), source = memory().kind_for_use(from, bytes);
  if (!target || !source || !fits(kind, *target, *source)) return failed(cudaErrorInvalidValue);
  if (Capture* const capture = capture_of(stream);
      capture && (*target == Kind::pageable || *source == Kind::pageable)) {
    capture->invalidate();
    return failed(cudaErrorStreamCaptureUnsupported);
  }
  if (*target == Kind::device && *source != Kind::device) ++counts().uploads;
  if (*source == Kind::pageable) {
    const auto* const first = static_cast<const std::byte*>(from);
    enqueue(stream, [=, read = std::make_shared<std::vector<std::byte>>(first, first + bytes)] {
      check_still_there(to, bytes, *target);
      std::memcpy(to, read->data(), bytes);
    });
  } else {
    enqueue(stream, [=] {
      check_still_there(to, bytes, *target);
      check_still_there(from, bytes, *source);
      const bool within = *target == Kind::device && *source == Kind::device;
      if (counting().on() &&
          !counting().copy(within ? "memcpy device to device" : "memcpy from or to the host", bytes) &&
          within)
        return;
      if (counting().on() && *source == Kind::device && !within) return read_uncounted(to, bytes);
      std::memcpy(to, from, bytes);
    });
  }
  if (*target == Kind::pageable) finish(stream);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* first, int value, std::size_t bytes, cudaStream_t stream) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  const std::optional<Kind> kind = memory().kind_for_use(first, bytes);
  if (!kind || *kind == Kind::pageable || memory().out_of_reach(first, device_of(stream)))
    return failed(cudaErrorInvalidValue);
  enqueue(stream, [=] {
    check_still_there(first, bytes, *kind);
    if (counting().on() && value == poison) return empty(first, bytes);
    if (counting().on() && !counting().copy("memset", bytes)) return;
    std::memset(first, value, bytes);
  });
  return cudaSuccess;
}

}  // extern "C"
