// Races between the blocks of a launch: a byte that one block writes and another reads or writes, in no
// order.
//
// The compiler calls for every load and store of the kernels (-fsanitize=thread, whose library is not linked:
// races.cpp has its functions). It cannot see: parts of a copy by memcpy, what stays in a register, and
// accesses of the libraries that are emulated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "emulated_gpu/pages.h"

namespace lockstep::emulated_gpu {

/// Who last wrote and read each byte in the launch that runs. A race ends the program, or is counted.
class Races {
 public:
  /// From now on, or no longer; slow.
  void check(bool on) { checks_ = on; }
  bool checks() const { return checks_; }
  /// Races are counted, and the program goes on.
  void count_only(bool on) { counts_only_ = on; }
  /// Races since the last call.
  int take_count() { return std::exchange(count_, 0); }
  /// Whether the kernels were compiled so that they call for accesses: not together with another sanitizer.
  bool sees_accesses() const { return seen_; }
  /// Of global memory, that were checked.
  std::uint64_t launches() const { return launches_; }
  std::uint64_t accesses() const { return accesses_; }

  void begin_launch(const char* kernel);
  void begin_block(std::uint32_t number);
  void end_launch() { kernel_ = nullptr; }
  /// Shared memory: each block has its own.
  void ignore(const void* first, std::size_t bytes);
  /// Of the calling thread: whether it runs a kernel now, not the program.
  void in_kernel(bool is);
  template <bool write>
  void access(const void* first, std::size_t bytes);

 private:
  /// The blocks of all launches have numbers of their own, which grow: one below those of the launch that
  /// runs is nobody.
  using Block = std::uint32_t;
  static constexpr std::size_t page_bytes = 1 << 14;
  struct Page {
    std::array<Block, page_bytes> writer{}, reader{};
  };
  struct Range {
    const std::byte* first = nullptr;
    std::size_t bytes = 0;
    Block block = 0;
    bool operator==(const Range&) const = default;
  };
  template <bool write>
  bool races_in(std::uintptr_t first, std::size_t bytes);
  void report(const void* first, bool write);

  bool checks_ = false, counts_only_ = false, seen_ = false;
  int count_ = 0;
  std::uint64_t launches_ = 0, accesses_ = 0;
  const char* kernel_ = nullptr;
  Block several_ = 0;  ///< blocks of this launch; the first of its numbers
  Block block_ = 0, last_ = 0;
  Pages<Page, page_bytes> pages_;
  Range last_read_;  ///< of those that no single load reads
  std::vector<std::pair<const std::byte*, std::size_t>> ignored_;
};
Races& races();

}  // namespace lockstep::emulated_gpu
