// Dropout, and tensors of random numbers, by counter with the element numbers of the CPU.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"
#include "lockstep/ops/random.h"

namespace lockstep::kernels {
namespace {

struct Keep {
  KernelRandom random;
  float p;
  float factor;  // 1 / (1 - p)

  __device__ float apply(float x, std::uint32_t word) const {
    return Random::to_uniform(word) >= p ? x * factor : 0.0f;
  }
};

/// Four elements are one Philox block.
template <class T>
struct DropPack {
  std::int64_t count;
  Keep keep;
  const T* x;
  T* y;
  __device__ void operator()(std::int64_t i) const {
    const auto words = keep.random.get().block(static_cast<std::uint64_t>(i));
    if (4 * i + 4 <= count) {
      const Pack<T, 4> in = load_pack<T, 4>(x + 4 * i);
      Pack<T, 4> out;
      for (int lane = 0; lane < 4; ++lane)
        out.lane[lane] = rounded<T>(keep.apply(to_float(in.lane[lane]), words[lane]));
      store_pack(y + 4 * i, out);
    } else {
      for (std::int64_t lane = 0; 4 * i + lane < count; ++lane)
        y[4 * i + lane] = rounded<T>(keep.apply(to_float(x[4 * i + lane]), words[lane]));
    }
  }
};

/// Channels last: a pack of channels at four positions, whose Philox blocks they share.
template <class T>
struct DropTile {
  unsigned channels, positions;  // of an image
  Keep keep;
  const T* x;
  T* y;

  static bool fits(const Image& image, const T* x, const T* y) {
    return image.channels_last && image.channels % pack_width<T> == 0 && image.positions % 4 == 0 &&
           image.images * image.channels * image.positions < (std::int64_t{1} << 32) && packs_at(x) &&
           packs_at(y);
  }
  __device__ void operator()(std::int64_t i) const {
    constexpr unsigned width = pack_width<T>;
    const auto tile = static_cast<unsigned>(i);
    const unsigned packs = channels / width, fours = positions / 4, channel = tile % packs * width,
                   four = tile / packs % fours, image = tile / packs / fours;
    const Random random = keep.random.get();
    const std::int64_t first = (static_cast<std::int64_t>(image) * positions + 4 * four) * channels + channel;
    Pack<T, width> at[4];
    for (int p = 0; p < 4; ++p) at[p] = load_pack<T, width>(x + first + p * channels);
    for (unsigned lane = 0; lane < width; ++lane) {
      const auto words =
          random.block((static_cast<std::uint64_t>(image) * channels + channel + lane) * fours + four);
      for (int p = 0; p < 4; ++p)
        at[p].lane[lane] = rounded<T>(keep.apply(to_float(at[p].lane[lane]), words[p]));
    }
    for (int p = 0; p < 4; ++p) store_pack(y + first + p * channels, at[p]);
  }
};

/// Element by element; with channels last, elements keep their numbers in [N, C, H, W].
template <class T>
struct DropElement {
  Image image;
  Keep keep;
  const T* x;
  T* y;
  __device__ void operator()(std::int64_t i) const {
    const auto element = static_cast<std::uint64_t>(image.element_at(i).number);
    y[i] = rounded<T>(keep.apply(to_float(x[i]), keep.random.get().bits(element)));
  }
};

void dropout(CudaBackend& gpu, const ops::Dropout& op) {
  const std::int64_t count = op.x.stored_numel();
  if (op.p == 0.0f) return gpu.copy(op.x, op.y);
  const Launch on = gpu.launch();
  const Keep keep{gpu.random(op.key), op.p, 1.0f / (1.0f - op.p)};
  by_type_of(op.x, [&]<class T>(T) {
    const T* const x = op.x.data<T>();
    T* const y = op.y.data<T>();
    if (op.x.channel_block() != 1) {
      const Image image = image_of(op.x);
      if (DropTile<T>::fits(image, x, y))
        return for_elements(on, count / (4 * pack_width<T>),
                            DropTile<T>{static_cast<unsigned>(image.channels),
                                        static_cast<unsigned>(image.positions), keep, x, y});
      for_elements(on, count, DropElement<T>{image, keep, x, y});
    } else if (packs_at(x, 4 * sizeof(T)) && packs_at(y, 4 * sizeof(T))) {
      for_elements(on, ceil_div(count, 4), DropPack<T>{count, keep, x, y});
    } else {
      for_elements(on, count, DropElement<T>{Image{.positions = count}, keep, x, y});
    }
  });
}

struct DrawNormal {
  KernelRandom random;
  float* y;
  __device__ void operator()(std::int64_t i) const {
    const auto [u, angle] = random.get().normal_terms(i);
    y[i] = static_cast<float>(sqrt(-2.0 * log(u)) * cos(angle));
  }
};

struct DrawInteger {
  KernelRandom random;
  std::uint32_t bound;
  std::int64_t* y;
  __device__ void operator()(std::int64_t i) const { y[i] = random.get().below(i, bound); }
};

struct DrawCoin {
  KernelRandom random;
  double zeros;  // their fraction
  std::uint8_t* y;
  __device__ void operator()(std::int64_t i) const { y[i] = random.get().bits(i) * 0x1p-32 >= zeros; }
};

struct DrawWeighted {
  KernelRandom random;
  const double* sums;
  std::int64_t count;
  std::int64_t* y;
  __device__ void operator()(std::int64_t i) const {
    const double target = random.get().bits(i) * 0x1p-32 * sums[count - 1];
    std::int64_t low = 0, high = count - 1;  // the first sum above the target is in [low, high]
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (sums[middle] > target)
        high = middle;
      else
        low = middle + 1;
    }
    y[i] = low;
  }
};

void draw(CudaBackend& gpu, const ops::Draw& op) {
  const Launch on = gpu.launch();
  const KernelRandom random = gpu.random(op.key);
  const std::int64_t count = op.y.numel();
  switch (op.distribution) {
    case ops::Distribution::normal:
      return for_elements(on, count, DrawNormal{random, op.y.data<float>()});
    case ops::Distribution::integer:
      return for_elements(
          on, count,
          DrawInteger{random, static_cast<std::uint32_t>(op.parameter), op.y.data<std::int64_t>()});
    case ops::Distribution::coin:
      return for_elements(on, count, DrawCoin{random, op.parameter, op.y.data<std::uint8_t>()});
    case ops::Distribution::weighted:
      return for_elements(
          on, count,
          DrawWeighted{random, op.sums.data<double>(), op.sums.numel(), op.y.data<std::int64_t>()});
  }
}

}  // namespace

void enter_random(CudaBackend& gpu) { gpu.enter<&dropout, &draw>(); }

}  // namespace lockstep::kernels
