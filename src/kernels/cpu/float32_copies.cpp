// bf16 activations for functions that support float32 only: each is converted to float32, and results are
// rounded to nearest even.
#include <algorithm>
#include <array>

#include "kernels/cpu/cpu_backend.h"
#include "lockstep/ops/check.h"

namespace lockstep::kernels {
namespace {

bool is_bf16(const Tensor& tensor) { return tensor && tensor.dtype() == DType::bfloat16; }

/// The float32 copies of one operation's bf16 tensors.
class Float32Copies {
 public:
  Float32Copies(CpuBackend& cpu, const ops::AnyOperation& operation)
      : cpu_(cpu), operation_(operation), activations_(operation.activation_type()) {}

  Tensor of(const ops::Role& role, const Tensor& original) {
    if (role.holds == ops::weights && !is_bf16(original) && activations_ == DType::bfloat16) {
      const Tensor rounded = cpu_.empty(original.shape(), DType::bfloat16);
      cpu_.copy(original, rounded);
      return copy_of(rounded, false).floats;
    }
    const bool is_float =
        role.holds == ops::activations || role.holds == ops::weights || role.holds == ops::floats;
    if (!is_float || !is_bf16(original)) return original;
    if (role.access == ops::Access::write && !role.part) return add(original, true).floats;
    return copy_of(original, role.access != ops::Access::read).floats;
  }
  void round() const {
    for (std::size_t i = 0; i < count_; ++i) {
      if (copies_[i].is_written) cpu_.copy(copies_[i].floats, copies_[i].original);
    }
  }

 private:
  struct Copy {
    Tensor original, floats;
    bool is_written = false;  // whole, or in part
    bool is_filled = false;   // with the original
  };

  /// A copy with the elements of the original. The same memory is copied once.
  const Copy& copy_of(const Tensor& original, bool is_written) {
    const auto end = copies_.begin() + static_cast<std::ptrdiff_t>(count_);
    const auto found = std::find_if(copies_.begin(), end, [&](const Copy& copy) {
      return copy.is_filled && copy.original.shares_memory_with(original) &&
             copy.original.shape() == original.shape();
    });
    Copy& copy = found != end ? *found : add(original, is_written);
    if (found == end) cpu_.copy(original, copy.floats);
    copy.is_filled = true;
    copy.is_written = copy.is_written || is_written;
    return copy;
  }
  Copy& add(const Tensor& original, bool is_written) {
    if (count_ == copies_.size())
      throw UsageError("{}: has more than {} operands in bf16", operation_.name(), copies_.size());
    Copy& copy = copies_[count_++];
    copy = {original, cpu_.empty(original.shape(), DType::float32, original.channel_block()), is_written};
    return copy;
  }

  CpuBackend& cpu_;
  const ops::AnyOperation& operation_;
  const DType activations_;
  std::array<Copy, 16> copies_;
  std::size_t count_ = 0;
};

void run_whole(CpuBackend& cpu, const Entry& entry, const ops::AnyOperation& operation, bool accumulate) {
  Float32Copies copies(cpu, operation);
  operation.with([&](const ops::Role& role, const Tensor& original) { return copies.of(role, original); },
                 [&](const ops::AnyOperation& in_floats) { entry.run(cpu, in_floats.get()); }, accumulate);
  copies.round();
}

/// The rows of the first operand by_row, and its elements.
struct RowsOf {
  std::int64_t rows = 0, elements = 0;

  explicit RowsOf(const ops::AnyOperation& operation) {
    bool has_rows = false;
    operation.visit([&](const char*, const ops::Role& role, const Tensor& tensor) {
      if (!role.by_row || has_rows || tensor.shape().rank() < 2) return;
      has_rows = true;
      elements = tensor.numel();
      rows = ops::row_count(tensor.shape());
    });
  }
};

Tensor rows_of(const Tensor& tensor, std::int64_t rows, std::int64_t begin, std::int64_t end) {
  const bool one_each = tensor.numel() == rows && tensor.shape().rank() < 2;
  return tensor.reshape(one_each ? Shape{rows} : Shape{rows, tensor.numel() / rows}).rows(begin, end);
}

}  // namespace

void run_on_float32_copies(CpuBackend& cpu, const Entry& entry, const ops::AnyOperation& operation) {
  constexpr std::int64_t elements_per_thread = 32768;
  const RowsOf of(operation);
  const std::int64_t rows = of.rows, elements = of.elements;
  if (entry.rows_together == 0 || rows == 0) return run_whole(cpu, entry, operation, false);
  const std::int64_t elements_together = entry.rows_together * std::max<std::int64_t>(1, elements / rows);
  const std::int64_t step =
      entry.rows_together *
      std::max<std::int64_t>(1, elements_per_thread * cpu.threads() / elements_together);
  operation.visit([&](const char* name, const ops::Role& role, const Tensor&) {
    if (role.access == ops::Access::write && !role.by_row)
      throw UsageError("{}: writes {} as a whole, so it cannot run on some rows at a time", operation.name(),
                       name);
  });
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t begin = first, end = std::min(rows, first + step);
    operation.with(
        [&](const ops::Role& role, const Tensor& original) {
          return role.by_row ? rows_of(original, rows, begin, end) : original;
        },
        [&](const ops::AnyOperation& some) { run_whole(cpu, entry, some, begin > 0); });
  }
}

}  // namespace lockstep::kernels
