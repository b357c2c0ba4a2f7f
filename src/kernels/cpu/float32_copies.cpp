// bf16 activations for functions that know float32 alone: each is widened, and what is written is rounded to
// nearest even.
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

  Tensor of(const ops::Role& role, const Tensor& given) {
    if (role.holds == ops::weights && !is_bf16(given) && activations_ == DType::bfloat16) {
      const Tensor rounded = cpu_.empty(given.shape(), DType::bfloat16);
      cpu_.copy(given, rounded);
      return copy_of(rounded, false).floats;
    }
    const bool is_float =
        role.holds == ops::activations || role.holds == ops::weights || role.holds == ops::floats;
    if (!is_float || !is_bf16(given)) return given;
    if (role.access == ops::Access::write && !role.part) return add(given, true).floats;
    return copy_of(given, role.access != ops::Access::read).floats;
  }
  void round() const {
    for (std::size_t i = 0; i < count_; ++i) {
      if (copies_[i].written) cpu_.copy(copies_[i].floats, copies_[i].given);
    }
  }

 private:
  struct Copy {
    Tensor given, floats;
    bool written = false;  // whole, or in part
    bool filled = false;   // with what was given
  };

  /// With what is given in it. The same memory is copied once.
  const Copy& copy_of(const Tensor& given, bool written) {
    const auto end = copies_.begin() + static_cast<std::ptrdiff_t>(count_);
    const auto found = std::find_if(copies_.begin(), end, [&](const Copy& copy) {
      return copy.filled && copy.given.shares_memory_with(given) && copy.given.shape() == given.shape();
    });
    Copy& copy = found != end ? *found : add(given, written);
    if (found == end) cpu_.copy(given, copy.floats);
    copy.filled = true;
    copy.written = copy.written || written;
    return copy;
  }
  Copy& add(const Tensor& given, bool written) {
    if (count_ == copies_.size())
      throw UsageError("{}: has more than {} operands in bf16", operation_.name(), copies_.size());
    Copy& copy = copies_[count_++];
    copy = {given, cpu_.empty(given.shape(), DType::float32, given.channel_block()), written};
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
  operation.with([&](const ops::Role& role, const Tensor& given) { return copies.of(role, given); },
                 [&](const ops::AnyOperation& in_floats) { entry.run(cpu, in_floats.get()); }, accumulate);
  copies.round();
}

/// Rows of the first operand that is given by rows, and its elements.
struct RowsOf {
  std::int64_t rows = 0, elements = 0;

  explicit RowsOf(const ops::AnyOperation& operation) {
    bool found = false;
    operation.visit([&](const char*, const ops::Role& role, const Tensor& tensor) {
      if (!role.by_row || found || tensor.shape().rank() < 2) return;
      found = true;
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
      throw UsageError("{}: writes {} as a whole, so it cannot be carried out on some rows at a time",
                       operation.name(), name);
  });
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t begin = first, end = std::min(rows, first + step);
    operation.with(
        [&](const ops::Role& role, const Tensor& given) {
          return role.by_row ? rows_of(given, rows, begin, end) : given;
        },
        [&](const ops::AnyOperation& some) { run_whole(cpu, entry, some, begin > 0); });
  }
}

}  // namespace lockstep::kernels
