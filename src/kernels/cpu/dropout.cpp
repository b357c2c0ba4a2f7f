// Dropout by counter: an element's fate is a function of the key and its logical number alone.
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "lockstep/ops/elementwise.h"

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
    const auto drawn = keep.random.block(block + static_cast<std::uint64_t>(i));
    words[4 * i] = drawn[0];
    words[4 * i + 1] = drawn[1];
    words[4 * i + 2] = drawn[2];
    words[4 * i + 3] = drawn[3];
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
  const std::int64_t channels = shape.size(1), places = shape.size(2) * shape.size(3),
                     lanes = shape.channel_block();
  const std::int64_t blocks = (channels + lanes - 1) / lanes;
  parallel_items(threads, shape.size(0) * blocks, 1, [&](std::int64_t item) {
    const std::int64_t image = item / blocks, first_channel = item % blocks * lanes;
    for (std::int64_t place = 0; place < places; ++place) {
      const std::int64_t at = (item * places + place) * lanes;
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        const std::int64_t channel = first_channel + lane;
        const auto element = static_cast<std::uint64_t>((image * channels + channel) * places + place);
        y[at + lane] = channel < channels ? keep.apply(x[at + lane], keep.random.bits(element)) : 0.0f;
      }
    }
  });
}

}  // namespace

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

void enter_dropout(CpuBackend& cpu) { cpu.enter<&dropout>(Computes::in_float32); }

}  // namespace lockstep::kernels
