#include "counting.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "races.h"

namespace lockstep::emulated_gpu {
namespace {

constexpr unsigned all_blocks_run = 16;  // of a grid up to this size
constexpr unsigned blocks_for_one = 64;  // of a larger one
constexpr std::size_t carried_out_bytes = 1 << 20;
constexpr std::size_t max_pages = 1 << 20;

/// When the program ends.
struct LastWord {
  ~LastWord() {
    const char* const path = std::getenv("LOCKSTEP_KERNEL_LIST");
    if (counting().on() && path)  // the form, and the name of the file, of tests/bench/kernel_list.cpp
      counting().write(fmt::format("{}.{}", path, getpid()), races().sees_accesses());
  }
} last_word;

}  // namespace

Counting& counting() {
  static Counting& made = *new Counting;  // threads may use it to the very end
  return made;
}

unsigned Counting::begin_launch(const char* kernel, dim3 grid, dim3 block) {
  const unsigned blocks = grid.x * grid.y * grid.z;
  const unsigned run = blocks <= all_blocks_run ? blocks : std::max(all_blocks_run, blocks / blocks_for_one);
  running_ = &kernels_[kernel];
  if (running_->count == 0) running_->grid = grid, running_->block = block;
  if (pages_.size() > max_pages) pages_.clear();
  ++launch_;
  sectors_ = 0;
  share_ = static_cast<double>(run) / blocks;
  return run;
}

void Counting::end_launch() { add(*running_, static_cast<double>(sectors_ * sector_bytes) / share_); }

template <bool write>
void Counting::access(std::uintptr_t first, std::size_t bytes) {
  for (std::uintptr_t at = first / sector_bytes * sector_bytes; at < first + bytes; at += sector_bytes) {
    Page& page = pages_.of(at);
    if (page.launch != launch_) page = {.launch = launch_, .read = {}, .written = {}};
    auto seen = (write ? page.written : page.read)[at % page_bytes / sector_bytes];
    sectors_ += !seen;
    seen = true;
  }
}
template void Counting::access<false>(std::uintptr_t, std::size_t);
template void Counting::access<true>(std::uintptr_t, std::size_t);

bool Counting::copy(const std::string& name, std::size_t bytes) {
  add(copies_[name], static_cast<double>(bytes));
  return bytes <= carried_out_bytes;
}

std::string Counting::json(const std::map<std::string, Figures>& all, bool with_bytes) {
  std::string text;
  for (const auto& [name, figures] : all) {
    const auto extents = [](dim3 of) { return fmt::format("[{}, {}, {}]", of.x, of.y, of.z); };
    text += text.empty() ? "" : ",\n  ";
    text += fmt::format("{{\"name\": \"{}\", \"count\": {}, \"ns\": 0", name, figures.count);
    if (with_bytes) text += fmt::format(", \"bytes\": {:.0f}", figures.bytes);
    if (figures.grid.x)
      text += fmt::format(", \"grid\": {}, \"block\": {}", extents(figures.grid), extents(figures.block));
    text += "}";
  }
  return "[" + text + "]";
}

void Counting::write(const std::string& path, bool saw_bytes) const {
  if (kernels_.empty()) return;  // a helper of the program
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (!file) return std::perror(path.c_str());
  std::fprintf(file, "{\"kernels\": %s,\n \"copies\": %s,\n \"dropped\": 0, \"unfinished\": 0}\n",
               json(kernels_, saw_bytes).c_str(), json(copies_, true).c_str());
  std::fclose(file);
}

}  // namespace lockstep::emulated_gpu
