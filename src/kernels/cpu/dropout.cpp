// Dropout by counter: an element's fate is a function of the key and its logical number alone.
#include <cstring>

#include "kernels/cpu/check.h"
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

void CpuBackend::dropout(const Tensor& x, float p, const RandomKey& key, const Tensor& y) {
  if (!(p >= 0.0f && p < 1.0f)) throw UsageError("dropout: p = {} is not in [0, 1)", p);
  require_alike("dropout", "y", y, x);
  const float* from = floats("dropout", "x", x);
  float* to = floats("dropout", "y", y);
  const Keep keep{Random(key), p, 1.0f / (1.0f - p)};
  if (p == 0.0f) {
    copy(x, y);
  } else if (x.channel_block() == 1) {
    drop_plain(threads_, keep, x.numel(), from, to);
  } else {
    drop_blocked(threads_, keep, x, from, to);
  }
}

}  // namespace lockstep::kernels
