// Dropout, and tensors of random numbers, by counter with the element numbers of the CPU.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/libraries.h"
#include "lockstep/ops/random.h"

namespace lockstep::kernels {
namespace {

struct Keep {
  KernelRandom random;
  float p;
  float factor;  // 1 / (1 - p)

  __device__ Random of_part() const { return random.get(part_number()); }
  __device__ float apply(float x, std::uint32_t word) const {
    return Random::to_uniform(word) >= p ? x * factor : 0.0f;
  }
};

/// The tensors of one part; part p has them p times `count` elements further on.
template <class T>
struct DropPart {
  std::int64_t count;
  const T* x;
  T* y;

  __device__ DropPart of_part() const {
    const std::int64_t earlier = part_number() * count;
    return {count, x + earlier, y + earlier};
  }
};

/// Four elements are one Philox block.
template <class T>
struct DropPack {
  DropPart<T> first;
  Keep keep;
  __device__ void operator()(std::int64_t i) const {
    const auto [count, x, y] = first.of_part();
    const auto words = keep.of_part().block(static_cast<std::uint64_t>(i));
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

/// Element by element; with channels last, elements keep their numbers in [N, C, H, W].
template <class T>
struct DropElement {
  Image image;
  DropPart<T> first;
  Keep keep;
  __device__ void operator()(std::int64_t i) const {
    const auto [count, x, y] = first.of_part();
    const auto element = static_cast<std::uint64_t>(image.element_at(i).number);
    y[i] = rounded<T>(keep.apply(to_float(x[i]), keep.of_part().bits(element)));
  }
};

void dropout(CudaBackend& gpu, const ops::Dropout& op, int parts) {
  const std::int64_t count = op.x.stored_numel();
  if (op.p == 0.0f)
    return check(cudaMemcpyAsync(op.y.raw(), op.x.raw(), static_cast<std::size_t>(parts) * op.x.bytes(),
                                 cudaMemcpyDeviceToDevice, gpu.launch().stream),
                 "cudaMemcpyAsync", gpu.device().index);
  const Launch on = gpu.launch();
  const Keep keep{gpu.random(op.key), op.p, 1.0f / (1.0f - op.p)};
  by_type_of(op.x, [&]<class T>(T) {
    const T* const x = op.x.data<T>();
    T* const y = op.y.data<T>();
    const DropPart<T> first{count, x, y};
    const auto run = [&](std::int64_t elements, const auto& element) {
      for_elements(on, elements, element, 256, parts);
    };
    if (op.x.channel_block() != 1) {
      run(count, DropElement<T>{image_of(op.x), first, keep});
    } else if (packs_at(x, 4 * sizeof(T)) && packs_at(y, 4 * sizeof(T)) && (parts == 1 || count % 4 == 0)) {
      run(ceil_div(count, 4), DropPack<T>{first, keep});
    } else {
      run(count, DropElement<T>{Image{.positions = count}, first, keep});
    }
  });
}

/// The numbers of one part; part p has them p times `count` elements further on.
template <class T>
struct Drawn {
  KernelRandom random;
  std::int64_t count;
  T* y;

  __device__ Random of_part() const { return random.get(part_number()); }
  __device__ T& at(std::int64_t i) const { return y[part_number() * count + i]; }
};

struct DrawNormal {
  Drawn<float> drawn;
  __device__ void operator()(std::int64_t i) const {
    const auto [u, angle] = drawn.of_part().normal_terms(i);
    drawn.at(i) = static_cast<float>(sqrt(-2.0 * log(u)) * cos(angle));
  }
};

struct DrawInteger {
  Drawn<std::int64_t> drawn;
  std::uint32_t bound;
  __device__ void operator()(std::int64_t i) const { drawn.at(i) = drawn.of_part().below(i, bound); }
};

struct DrawCoin {
  Drawn<std::uint8_t> drawn;
  double zeros;  // their fraction
  __device__ void operator()(std::int64_t i) const {
    drawn.at(i) = drawn.of_part().bits(i) * 0x1p-32 >= zeros;
  }
};

struct DrawWeighted {
  Drawn<std::int64_t> drawn;
  const double* sums;
  std::int64_t count;
  __device__ void operator()(std::int64_t i) const {
    const double target = drawn.of_part().bits(i) * 0x1p-32 * sums[count - 1];
    std::int64_t low = 0, high = count - 1;  // the first sum above the target is in [low, high]
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (sums[middle] > target)
        high = middle;
      else
        low = middle + 1;
    }
    drawn.at(i) = low;
  }
};

void draw(CudaBackend& gpu, const ops::Draw& op, int parts) {
  const KernelRandom random = gpu.random(op.key);
  const auto into = [&]<class T>(T) { return Drawn<T>{random, op.y.numel(), op.y.data<T>()}; };
  const auto run = [&](const auto& element) {
    for_elements(gpu.launch(), op.y.numel(), element, 256, parts);
  };
  switch (op.distribution) {
    case ops::Distribution::normal:
      return run(DrawNormal{into(float{})});
    case ops::Distribution::integer:
      return run(DrawInteger{into(std::int64_t{}), static_cast<std::uint32_t>(op.parameter)});
    case ops::Distribution::coin:
      return run(DrawCoin{into(std::uint8_t{}), op.parameter});
    case ops::Distribution::weighted:
      return run(DrawWeighted{into(std::int64_t{}), op.sums.data<double>(), op.sums.numel()});
  }
}

}  // namespace

void enter_random(CudaBackend& gpu) { gpu.enter_at_once<&dropout, &draw>(); }

}  // namespace lockstep::kernels
