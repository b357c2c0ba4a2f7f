// Dropout, and tensors of random numbers.
#include "lockstep/ops/random.h"

#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t blocks_at_once =
    64;  // Philox blocks of four words drawn together, so that the rounds vectorise
constexpr std::int64_t elements_at_once = 4 * blocks_at_once;

struct Keep {
  Random random;
  float p;
  float factor;  // 1 / (1 - p)

  float apply(float x, std::uint32_t word) const { return Random::to_uniform(word) >= p ? x * factor : 0.0f; }
};

/// Elements [first, first + count), first divisible by 4, count <= elements_at_once.
void drop_group(const Keep keep, std::int64_t first, std::int64_t count, const float* x, float* y) {
  std::uint32_t words[elements_at_once];
  const auto block = static_cast<std::uint64_t>(first / 4);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < blocks_at_once; ++i) {
    const auto four = keep.random.block(block + static_cast<std::uint64_t>(i));
    words[4 * i] = four[0];
    words[4 * i + 1] = four[1];
    words[4 * i + 2] = four[2];
    words[4 * i + 3] = four[3];
  }
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) y[first + i] = keep.apply(x[first + i], words[i]);
}

void drop_plain(int threads, const Keep& keep, std::int64_t count, const float* x, float* y) {
  const std::int64_t groups = (count + elements_at_once - 1) / elements_at_once;
  parallel_items(threads, groups, 16, [&](std::int64_t group) {
    const std::int64_t first = group * elements_at_once;
    drop_group(keep, first, std::min(elements_at_once, count - first), x, y);
  });
}

void drop_blocked(int threads, const Keep& keep, const Tensor& shape, const float* x, float* y) {
  const std::int64_t channels = shape.size(1), positions = positions_of(shape.shape()),
                     lanes = shape.channel_block();
  const std::int64_t blocks = (channels + lanes - 1) / lanes;
  parallel_items(threads, shape.size(0) * blocks, 1, [&](std::int64_t item) {
    const std::int64_t image = item / blocks, first_channel = item % blocks * lanes;
    for (std::int64_t position = 0; position < positions; ++position) {
      const std::int64_t at = (item * positions + position) * lanes;
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        const std::int64_t channel = first_channel + lane;
        const auto element = static_cast<std::uint64_t>((image * channels + channel) * positions + position);
        y[at + lane] = channel < channels ? keep.apply(x[at + lane], keep.random.bits(element)) : 0.0f;
      }
    }
  });
}

void dropout(CpuBackend& cpu, const ops::Dropout& op) {
  const float* from = op.x.data<float>();
  float* to = op.y.data<float>();
  const Keep keep{Random(op.key), op.p, 1.0f / (1.0f - op.p)};
  if (op.p == 0.0f) {
    cpu.copy(op.x, op.y);
  } else if (op.x.channel_block() == 1) {
    drop_plain(cpu.threads(), keep, op.x.numel(), from, to);
  } else {
    drop_blocked(cpu.threads(), keep, op.x, from, to);
  }
}

/// Sets element i to value(i).
template <class T, class Value>
void draw_each(int threads, const Tensor& y, const Value& value) {
  constexpr std::int64_t elements_per_thread = 1024;
  parallel_ranges(threads, y.numel(), elements_per_thread,
                  [&, to = y.data<T>()](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; ++i) to[i] = value(static_cast<std::uint64_t>(i));
                  });
}

void draw(CpuBackend& cpu, const ops::Draw& op) {
  const Random random(op.key);
  const int threads = cpu.threads();
  switch (op.distribution) {
    case ops::Distribution::normal:
      return draw_each<float>(threads, op.y, [&](std::uint64_t i) { return random.normal(i); });
    case ops::Distribution::integer:
      return draw_each<std::int64_t>(threads, op.y, [&](std::uint64_t i) {
        return random.below(i, static_cast<std::uint32_t>(op.parameter));
      });
    case ops::Distribution::coin:
      return draw_each<std::uint8_t>(
          threads, op.y, [&](std::uint64_t i) { return random.bits(i) * 0x1p-32 >= op.parameter; });
    case ops::Distribution::weighted: {
      const double* const sums = op.sums.data<double>();
      const std::int64_t count = op.sums.numel();
      return draw_each<std::int64_t>(threads, op.y, [&](std::uint64_t i) {
        const double target = random.bits(i) * 0x1p-32 * sums[count - 1];
        return std::min(std::upper_bound(sums, sums + count, target) - sums, count - 1);
      });
    }
  }
}

}  // namespace

void enter_random(CpuBackend& cpu) {
  cpu.enter<&dropout>(Computes::in_float32);
  cpu.enter<&draw>();
}

}  // namespace lockstep::kernels
