// Losses. Sums over rows run in float64 and in row order, so that they depend on neither threads nor
// magnitude.
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/math.h"

namespace lockstep::kernels {
namespace {

using ops::exponential;

constexpr std::int64_t elements_per_thread = 4096;

struct Logits {
  std::int64_t rows, classes;
  const float* data;
  const std::int64_t* targets;

  std::int64_t rows_per_thread() const { return elements_per_thread / std::max<std::int64_t>(1, classes); }
};

Logits logits_of(const Tensor& logits, const Tensor& targets) {
  return {logits.size(0), logits.size(1), logits.data<float>(), targets.data<std::int64_t>()};
}

/// The number of rows that count. Throws for a target that is neither a class nor ignored.
std::int64_t counted_rows(const char* operation, const Logits& logits, std::int64_t ignore_index) {
  std::int64_t counted = 0;
  for (std::int64_t row = 0; row < logits.rows; ++row) {
    const std::int64_t target = logits.targets[row];
    if (target == ignore_index) continue;
    if (target < 0 || target >= logits.classes)
      ops::throw_target_outside(operation, target, row, logits.classes);
    ++counted;
  }
  return counted;
}

float sum_of_exponentials(const float* x, float max, std::int64_t count) {
  // Exponentials go to a tile first, then to lanes, because the loop over exponentials vectorises only alone.
  constexpr std::int64_t tile = 512;
  float exponentials[tile];
  float total = 0;
  for (std::int64_t first = 0; first < count; first += tile) {
    const std::int64_t n = std::min(tile, count - first);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) exponentials[i] = exponential(x[first + i] - max);
    total += sum(exponentials, n);
  }
  return total;
}

/// d = factor * (e^(x - log) - spread); d may be x. Arguments by value, because a store to d might change
/// captures of a lambda.
void gradient_row(const float* x, std::int64_t classes, float log, float factor, float spread, float* d) {
#pragma GCC ivdep
  for (std::int64_t c = 0; c < classes; ++c) d[c] = factor * (exponential(x[c] - log) - spread);
}

}  // namespace

void cross_entropy(CpuBackend& cpu, const ops::CrossEntropy& op) {
  const Logits in = logits_of(op.logits, op.targets);
  float* logs = op.log_sum_exp.data<float>();
  const std::int64_t counted = counted_rows(op.name, in, op.options.ignore_index);
  const Tensor losses_holder = cpu.scratch(in.rows, DType::float64);
  double* losses = losses_holder.data<double>();
  const double smoothing = op.options.label_smoothing;
  parallel_items(
      cpu.threads(), in.rows, in.rows_per_thread(), [=, ignored = op.options.ignore_index](std::int64_t row) {
        const float* x = in.data + row * in.classes;
        const std::int64_t target = in.targets[row];
        losses[row] = 0;
        logs[row] = 0;
        if (target == ignored) return;
        const float max = largest(x, in.classes);
        const double log =
            static_cast<double>(max) + std::log(static_cast<double>(sum_of_exponentials(x, max, in.classes)));
        logs[row] = static_cast<float>(log);
        losses[row] = (1 - smoothing) * (log - x[target]);
        if (smoothing > 0)
          losses[row] +=
              smoothing * (log - static_cast<double>(sum(x, in.classes)) / static_cast<double>(in.classes));
      });
  double sum = 0;
  for (std::int64_t row = 0; row < in.rows; ++row) sum += losses[row];
  op.total.data<double>()[0] = sum;
  op.total.data<double>()[1] = static_cast<double>(counted);
}

void cross_entropy_backward(CpuBackend& cpu, const ops::CrossEntropyBackward& op) {
  const Logits in = logits_of(op.logits, op.targets);
  const float* logs = op.log_sum_exp.data<float>();
  float* to = op.dlogits.data<float>();
  const float by = *op.factor.data<float>(), smoothing = op.options.label_smoothing;
  counted_rows(op.name, in, op.options.ignore_index);
  const float spread = in.classes == 0 ? 0.0f : smoothing / static_cast<float>(in.classes);
  parallel_items(cpu.threads(), in.rows, in.rows_per_thread(),
                 [=, ignored = op.options.ignore_index](std::int64_t row) {
                   const float* x = in.data + row * in.classes;
                   float* d = to + row * in.classes;
                   const std::int64_t target = in.targets[row];
                   if (target == ignored) return std::fill(d, d + in.classes, 0.0f);
                   const float at_target = exponential(x[target] - logs[row]) - spread - (1.0f - smoothing);
                   gradient_row(x, in.classes, logs[row], by, spread, d);
                   d[target] = by * at_target;
                 });
}

void scale_unless_one(CpuBackend& cpu, const ops::ScaleUnlessOne& op) {
  const float factor = *op.factor.data<float>();
  if (factor != 1) cpu.run(ops::scale(op.x, factor, op.x));
}

void count_correct(CpuBackend& cpu, const ops::CountCorrect& op) {
  const Logits in = logits_of(op.logits, op.targets);
  auto* count = op.correct.data<std::int64_t>();
  *count = 0;
  if (in.classes == 0) return;
  const Tensor hits_holder = cpu.scratch(in.rows, DType::uint8);
  auto* hits = hits_holder.data<std::uint8_t>();
  parallel_items(cpu.threads(), in.rows, in.rows_per_thread(), [=](std::int64_t row) {
    const float* x = in.data + row * in.classes;
    const float* first = std::find(x, x + in.classes, largest(x, in.classes));
    hits[row] = first - x == in.targets[row];
  });
  for (std::int64_t row = 0; row < in.rows; ++row) *count += hits[row];
}

void combine_totals(CpuBackend&, const ops::CombineTotals& op) {
  const double *const a = op.a.data<double>(), *const b = op.b ? op.b.data<double>() : nullptr;
  double* const total = op.total.data<double>();
  if (b && a[1] != b[1])
    ops::throw_counts_differ(static_cast<std::int64_t>(a[1]), static_cast<std::int64_t>(b[1]));
  total[0] = op.factor * a[0] + (b ? b[0] : 0.0);
  total[1] = a[1];
}

void enter_loss(CpuBackend& cpu) {
  cpu.enter<&cross_entropy>(Computes::in_float32);
  cpu.enter<&cross_entropy_backward>(Computes::in_float32, 1);
  cpu.enter<&scale_unless_one>();
  cpu.enter<&count_correct>(Computes::in_float32);
  cpu.enter<&combine_totals>();
}

}  // namespace lockstep::kernels
