// Losses. Sums over rows run in float64 and in row order, so that they depend on neither threads nor
// magnitude.
#include <cmath>

#include "kernels/cpu/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/data_error.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 4096;
constexpr std::int64_t block_elements = 4096;

struct Logits {
  std::int64_t rows, classes;
  const float* data;
  const std::int64_t* targets;

  std::int64_t rows_per_thread() const { return elements_per_thread / std::max<std::int64_t>(1, classes); }
};

Logits checked_logits(const char* operation, const Tensor& logits, const Tensor& targets) {
  if (logits.shape().rank() != 2) {
    throw UsageError("{}: the logits have shape {}, not [rows, classes]", operation,
                     to_string(logits.shape()));
  }
  require_shape(operation, "the targets", targets, {logits.size(0)});
  return {logits.size(0), logits.size(1), plain_floats(operation, "the logits", logits),
          elements<std::int64_t>(operation, "the targets", targets)};
}

/// Throws on a target that is neither a class nor ignored; the number of rows that count.
std::int64_t counted_rows(const char* operation, const Logits& logits, std::int64_t ignore_index) {
  std::int64_t counted = 0;
  for (std::int64_t row = 0; row < logits.rows; ++row) {
    const std::int64_t target = logits.targets[row];
    if (target == ignore_index) continue;
    if (target < 0 || target >= logits.classes) throw_target_outside(operation, target, row, logits.classes);
    ++counted;
  }
  return counted;
}

struct WeightedSumRef {
  double* data;

  void set(double sum, double weight) const {
    data[0] = sum;
    data[1] = weight;
  }
};

WeightedSumRef weighted_sum(const char* operation, const Tensor& total) {
  require_shape(operation, "the total", total, {2});
  return {elements<double>(operation, "the total", total)};
}

float scalar(const char* operation, const Tensor& factor) {
  require_shape(operation, "the factor", factor, {});
  return *plain_floats(operation, "the factor", factor);
}

float sum_of_exponentials(const float* x, float most, std::int64_t count) {
  // Exponentials first, into a tile, then lanes: the loop over exponentials vectorises alone.
  constexpr std::int64_t tile = 512;
  float exponentials[tile];
  float total = 0;
  for (std::int64_t first = 0; first < count; first += tile) {
    const std::int64_t n = std::min(tile, count - first);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) exponentials[i] = exponential(x[first + i] - most);
    total += sum(exponentials, n);
  }
  return total;
}

/// d = factor * (e^(x - log) - spread); d may be x. Plain arguments: what a lambda captured, a store to d
/// might change.
void gradient_row(const float* x, std::int64_t classes, float log, float factor, float spread, float* d) {
#pragma GCC ivdep
  for (std::int64_t c = 0; c < classes; ++c) d[c] = factor * (exponential(x[c] - log) - spread);
}

}  // namespace

void CpuBackend::cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropy& options,
                               const Tensor& log_sum_exp, const Tensor& total) {
  const Logits in = checked_logits("cross_entropy", logits, targets);
  require_shape("cross_entropy", "log_sum_exp", log_sum_exp, {in.rows});
  float* logs = plain_floats("cross_entropy", "log_sum_exp", log_sum_exp);
  const WeightedSumRef out = weighted_sum("cross_entropy", total);
  const std::int64_t counted = counted_rows("cross_entropy", in, options.ignore_index);
  const Tensor losses_holder = scratch(in.rows, DType::float64);
  double* losses = losses_holder.data<double>();
  const double smoothing = options.label_smoothing;
  parallel_items(threads_, in.rows, in.rows_per_thread(), [=](std::int64_t row) {
    const float* x = in.data + row * in.classes;
    const std::int64_t target = in.targets[row];
    losses[row] = 0;
    logs[row] = 0;
    if (target == options.ignore_index) return;
    const float most = largest(x, in.classes);
    const double log =
        static_cast<double>(most) + std::log(static_cast<double>(sum_of_exponentials(x, most, in.classes)));
    logs[row] = static_cast<float>(log);
    losses[row] = (1 - smoothing) * (log - x[target]);
    if (smoothing > 0)
      losses[row] +=
          smoothing * (log - static_cast<double>(sum(x, in.classes)) / static_cast<double>(in.classes));
  });
  double sum = 0;
  for (std::int64_t row = 0; row < in.rows; ++row) sum += losses[row];
  out.set(sum, static_cast<double>(counted));
}

void CpuBackend::cross_entropy_backward(const Tensor& logits, const Tensor& targets,
                                        const CrossEntropy& options, const Tensor& log_sum_exp,
                                        const Tensor& factor, const Tensor& dlogits) {
  constexpr const char* operation = "cross_entropy_backward";
  const Logits in = checked_logits(operation, logits, targets);
  require_shape(operation, "log_sum_exp", log_sum_exp, {in.rows});
  require_shape(operation, "dlogits", dlogits, logits.shape());
  const float* logs = plain_floats(operation, "log_sum_exp", log_sum_exp);
  float* to = plain_floats(operation, "dlogits", dlogits);
  const float by = scalar(operation, factor);
  counted_rows(operation, in, options.ignore_index);
  const float spread = in.classes == 0 ? 0.0f : options.label_smoothing / static_cast<float>(in.classes);
  parallel_items(threads_, in.rows, in.rows_per_thread(), [=](std::int64_t row) {
    const float* x = in.data + row * in.classes;
    float* d = to + row * in.classes;
    const std::int64_t target = in.targets[row];
    if (target == options.ignore_index) return std::fill(d, d + in.classes, 0.0f);
    const float at_target = exponential(x[target] - logs[row]) - spread - (1.0f - options.label_smoothing);
    gradient_row(x, in.classes, logs[row], by, spread, d);
    d[target] = by * at_target;
  });
}

void CpuBackend::count_correct(const Tensor& logits, const Tensor& targets, const Tensor& correct) {
  const Logits in = checked_logits("count_correct", logits, targets);
  require_shape("count_correct", "the count", correct, {});
  auto* count = elements<std::int64_t>("count_correct", "the count", correct);
  *count = 0;
  if (in.classes == 0) return;
  const Tensor hits_holder = scratch(in.rows, DType::uint8);
  auto* hits = hits_holder.data<std::uint8_t>();
  parallel_items(threads_, in.rows, in.rows_per_thread(), [=](std::int64_t row) {
    const float* x = in.data + row * in.classes;
    const float* first = std::find(x, x + in.classes, largest(x, in.classes));
    hits[row] = first - x == in.targets[row];
  });
  for (std::int64_t row = 0; row < in.rows; ++row) *count += hits[row];
}

void CpuBackend::squared_error(const Tensor& x, const Tensor& target, const Tensor& total) {
  require_shape("squared_error", "target", target, x.shape());
  const float *a = plain_floats("squared_error", "x", x),
              *b = plain_floats("squared_error", "target", target);
  const WeightedSumRef out = weighted_sum("squared_error", total);
  const std::int64_t count = x.numel(), blocks = (count + block_elements - 1) / block_elements;
  const Tensor sums_holder = scratch(blocks, DType::float64);
  double* sums = sums_holder.data<double>();
  parallel_items(threads_, blocks, 1, [=](std::int64_t block) {
    Doubles lanes[2] = {};
    std::int64_t i = block * block_elements;
    const std::int64_t end = std::min(count, i + block_elements);
    for (; i + 8 <= end; i += 8) {
      for (int half = 0; half < 2; ++half) {
        Doubles off;
        for (int lane = 0; lane < 4; ++lane)
          off[lane] = static_cast<double>(a[i + 4 * half + lane]) - b[i + 4 * half + lane];
        lanes[half] += off * off;
      }
    }
    double sum = sum_of(lanes[0] + lanes[1]);
    for (; i < end; ++i) sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    sums[block] = sum;
  });
  double sum = 0;
  for (std::int64_t block = 0; block < blocks; ++block) sum += sums[block];
  out.set(sum, static_cast<double>(count));
}

void CpuBackend::squared_error_backward(const Tensor& x, const Tensor& target, const Tensor& factor,
                                        const Tensor& dx) {
  constexpr const char* operation = "squared_error_backward";
  require_shape(operation, "target", target, x.shape());
  require_shape(operation, "dx", dx, x.shape());
  const float *a = plain_floats(operation, "x", x), *b = plain_floats(operation, "target", target);
  float* to = plain_floats(operation, "dx", dx);
  const float twice = 2.0f * scalar(operation, factor);
  parallel_ranges(threads_, x.numel(), elements_per_thread, [=](std::int64_t begin, std::int64_t end) {
    const float by = twice;  // a copy that no store can change
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) to[i] = by * (a[i] - b[i]);
  });
}

}  // namespace lockstep::kernels
