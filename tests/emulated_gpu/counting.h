// Work that is counted instead of done (LOCKSTEP_EMULATED_GPU=count): what a program of any size launches
// and moves, in seconds and with memory that nothing fills. Its numbers mean nothing: memory is zeros, and
// libraries compute nothing.
//
// Kernels run, but of a large grid only the first blocks, as bytes need some: each launch reads and writes so
// many different sectors of 32 bytes, which is what has to move if no cache holds them from before. The
// others are taken to do as much, so that what all blocks read (the weights of a norm) counts for each
// sixteenth or, in the largest grids, sixty-fourth part of them. Sectors are seen where the kernels were
// compiled with LOCKSTEP_EMULATED_RACES; else only launches are counted. A call of a library is one launch,
// which moves its operands once: how many kernels it makes of it, only a GPU knows.
#pragma once

#include <cuda_runtime_api.h>

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "emulated_gpu/pages.h"

namespace lockstep::emulated_gpu {

class Counting {
 public:
  void begin() { on_ = true; }
  bool on() const { return on_; }
  /// So many that a GPU's grid has its size: an H100's.
  static constexpr int multiprocessors = 132;

  /// How many of the blocks of a launch run. end_launch() makes the bytes of all of them.
  unsigned begin_launch(const char* kernel, dim3 grid, dim3 block);
  void end_launch();
  template <bool write>
  void access(std::uintptr_t first, std::size_t bytes);
  /// A call of a library.
  void call(const std::string& name, std::size_t bytes) { add(kernels_[name], static_cast<double>(bytes)); }
  /// A copy or a fill. False: it is too large to be carried out.
  bool copy(const std::string& name, std::size_t bytes);
  /// The form of kernel_list.cpp.
  void write(const std::string& path, bool saw_bytes) const;

 private:
  static constexpr std::size_t sector_bytes = 32, page_bytes = 1 << 14;
  struct Page {
    std::uint64_t launch = 0;
    std::bitset<page_bytes / sector_bytes> read, written;
  };
  struct Figures {
    std::int64_t count = 0;
    double bytes = 0;
    dim3 grid{0, 0, 0}, block{0, 0, 0};  ///< of the first launch
  };
  static void add(Figures& figures, double bytes) {
    ++figures.count;
    figures.bytes += bytes;
  }
  static std::string json(const std::map<std::string, Figures>& all, bool with_bytes);

  bool on_ = false;
  std::map<std::string, Figures> kernels_, copies_;
  Pages<Page, page_bytes> pages_;
  Figures* running_ = nullptr;
  std::uint64_t launch_ = 0, sectors_ = 0;
  double share_ = 1;  ///< of the launch's blocks that run
};
Counting& counting();

}  // namespace lockstep::emulated_gpu
