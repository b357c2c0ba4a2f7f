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
  bool sees_accesses() const { return calls_ > 0; }

  void begin_launch(const char* kernel);
  void begin_block(std::uint32_t number);
  void end_launch() { kernel_ = nullptr; }
  /// Shared memory: each block has its own.
  void ignore(const void* first, std::size_t bytes);
  /// Of the calling thread: whether it runs a kernel now, not the program.
  void in_kernel(bool is);
  void access(const void* first, std::size_t bytes, bool write);

 private:
  static constexpr std::uint32_t nobody = 0, several = 0xffffffff;
  /// Of 4 bytes.
  struct Cell {
    std::uintptr_t word = 0;
    std::uint32_t launch = 0;  ///< another one's cell is empty
    std::array<std::uint32_t, 4> writer{}, reader{};
  };
  Cell& cell_of(std::uintptr_t word);
  void enlarge();
  void report(std::uintptr_t byte, std::uint32_t other, bool write);

  bool checks_ = false, counts_only_ = false;
  int count_ = 0;
  std::uint64_t calls_ = 0;
  const char* kernel_ = nullptr;
  std::uint32_t launch_ = 0, block_ = nobody;  ///< block: its number + 1
  std::size_t in_use_ = 0;
  std::vector<Cell> cells_;
  std::vector<std::pair<const std::byte*, std::size_t>> ignored_;
};
Races& races();

}  // namespace lockstep::emulated_gpu
