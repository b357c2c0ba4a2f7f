#include <cstring>

#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "lockstep/ops/check.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 16384;

template <class T>
void fill_with(int threads, const Tensor& out, T value) {
  T* to = static_cast<T*>(out.raw());
  parallel_ranges(threads, out.stored_numel(), elements_per_thread,
                  [=](std::int64_t begin, std::int64_t end) { std::fill(to + begin, to + end, value); });
}

/// Copies if the tensors have these types; returns whether they do.
template <class From, class To>
bool converted(int threads, const Tensor& from, const Tensor& to) {
  if (from.dtype() != dtype_of<From> || to.dtype() != dtype_of<To>) return false;
  parallel_ranges(threads, from.stored_numel(), elements_per_thread,
                  [source = from.data<From>(), target = to.data<To>()](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
                    for (std::int64_t i = begin; i < end; ++i) store(target[i], to_float(source[i]));
                  });
  return true;
}

/// sums += four rows, one after the other.
template <class E>
void add_rows_in_order(const E* rows, std::int64_t stride, std::int64_t columns, float* sums) {
  const E *const second = rows + stride, *const third = second + stride, *const fourth = third + stride;
#pragma GCC ivdep
  for (std::int64_t c = 0; c < columns; ++c)
    sums[c] =
        (((sums[c] + to_float(rows[c])) + to_float(second[c])) + to_float(third[c])) + to_float(fourth[c]);
}

/// Columns in tiles, rows in groups: a group's partial sums stay small, so that thousands of rows cost no
/// accuracy. Tiles are as wide as threads allow, because long runs of memory are fastest to read.
template <class E>
void sum_rows_of(int threads, const E* from, std::int64_t rows, std::int64_t width, bool accumulate,
                 float* to) {
  constexpr std::int64_t max_tile = 1024, group = 64, together = 4, line = 16;
  const std::int64_t share = (width + threads - 1) / threads;
  const std::int64_t tile = std::min(max_tile, (share + line - 1) / line * line);
  const std::int64_t tiles = (width + tile - 1) / tile;
  parallel_items(threads, tiles, elements_per_thread / (tile * std::max<std::int64_t>(1, rows)),
                 [=](std::int64_t t) {
                   const std::int64_t first = t * tile, columns = std::min(tile, width - first);
                   alignas(32) float total[max_tile] = {};
                   for (std::int64_t r = 0; r < rows; r += group) {
                     alignas(32) float partial[max_tile] = {};
                     const std::int64_t end = std::min(rows, r + group);
                     std::int64_t i = r;
                     for (; i + together <= end; i += together)
                       add_rows_in_order(from + i * width + first, width, columns, partial);
                     for (; i < end; ++i) {
                       const E* const source = from + i * width + first;
#pragma GCC ivdep
                       for (std::int64_t c = 0; c < columns; ++c) partial[c] += to_float(source[c]);
                     }
#pragma GCC ivdep
                     for (std::int64_t c = 0; c < columns; ++c) total[c] += partial[c];
                   }
#pragma GCC ivdep
                   for (std::int64_t c = 0; c < columns; ++c)
                     to[first + c] = accumulate ? to[first + c] + total[c] : total[c];
                 });
}

}  // namespace

void fill(CpuBackend& cpu, const ops::Fill& op) {
  switch (op.to.dtype()) {
    case DType::float32:
      fill_with(cpu.threads(), op.to, static_cast<float>(op.value));
      break;
    case DType::float64:
      fill_with(cpu.threads(), op.to, op.value);
      break;
    case DType::bfloat16:
      fill_with(cpu.threads(), op.to, BFloat16{bfloat16_bits(static_cast<float>(op.value))});
      break;
    case DType::int64:
      fill_with(cpu.threads(), op.to, static_cast<std::int64_t>(op.value));
      break;
    case DType::int32:
      fill_with(cpu.threads(), op.to, static_cast<std::int32_t>(op.value));
      break;
    case DType::uint8:
      fill_with(cpu.threads(), op.to, static_cast<std::uint8_t>(op.value));
      break;
    default:
      break;  // refused by the operation
  }
  if (op.value != 0) zero_padding(op.to);
}

void CpuBackend::copy_elements(const Tensor& from, const Tensor& to) {
  ops::require_alike("copy", "the target", to, from);
  if (from.device() != Device::cpu() || to.device() != Device::cpu()) {
    throw UsageError("copy: the CPU backend cannot copy from {} to {}", to_string(from.device()),
                     to_string(to.device()));
  }
  const std::int64_t count = from.stored_numel();
  if (from.dtype() == to.dtype()) {
    const auto* source = static_cast<const char*>(from.raw());
    auto* target = static_cast<char*>(to.raw());
    const auto width = static_cast<std::int64_t>(bytes_of(from.dtype()));
    parallel_ranges(threads_, count, elements_per_thread, [=](std::int64_t begin, std::int64_t end) {
      std::memcpy(target + begin * width, source + begin * width,
                  static_cast<std::size_t>((end - begin) * width));
    });
  } else if (!converted<float, BFloat16>(threads_, from, to) &&
             !converted<BFloat16, float>(threads_, from, to) &&
             !converted<double, float>(threads_, from, to) &&
             !converted<std::int64_t, float>(threads_, from, to) &&
             !converted<std::int32_t, float>(threads_, from, to) &&
             !converted<std::uint8_t, float>(threads_, from, to)) {
    throw UsageError("copy: {} is not converted to {}", to_string(from.dtype()), to_string(to.dtype()));
  }
}

void sum_rows(CpuBackend& cpu, const ops::SumRows& op) {
  float* to = op.row.data<float>();
  const std::int64_t width = op.row.numel(), rows = op.rows();
  if (width == 0) return;
  by_type_of(op.x,
             [&]<class E>(E) { sum_rows_of(cpu.threads(), op.x.data<E>(), rows, width, op.accumulate, to); });
}

void enter_elementwise(CpuBackend& cpu) { cpu.enter<&fill, &sum_rows>(); }

}  // namespace lockstep::kernels
