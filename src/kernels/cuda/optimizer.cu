// Optimizer steps of many tensors and their moving averages in one pass. The tensors' descriptions travel as
// the kernel's argument; a block finds the tensor that its elements belong to.
#include <algorithm>

#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/map.cuh"

namespace lockstep::kernels {
namespace {

constexpr int block = 256;
constexpr std::int64_t elements_per_block = 4096;

template <class Factors>
struct Batch {
  int entries;
  std::int64_t first_block[most_entries + 1];  // of each entry, and their end
  UpdateEntry<Factors> entry[most_entries];
};
static_assert(sizeof(Batch<AdamWFactors>) <= 32 * 1024 - 512, "a kernel's arguments are at most 32 KiB");

struct Element {
  float value, first, second;
};

__device__ Element updated(const AdamWFactors& f, const Element& old, float gradient) {
  const float g = gradient * f.gradient;
  const float m = f.beta1 * old.first + f.fresh1 * g;
  const float v = f.beta2 * old.second + f.fresh2 * (g * g);
  const float denominator = sqrtf(v) / f.correction2 + f.eps;
  return {old.value * f.decay - f.rate * (m / denominator), m, v};
}

__device__ Element updated(const SgdFactors& f, const Element& old, float gradient) {
  float g = gradient * f.gradient + f.decay * old.value;
  float buffer = old.first;
  if (f.kind != Momentum::none) {
    buffer = f.kind == Momentum::first ? g : f.momentum * buffer + g;
    g = f.nesterov ? g + f.momentum * buffer : buffer;
  }
  return {old.value - f.rate * g, buffer, 0};
}

template <int Width>
__device__ Pack<float, Width> load_or_zero(const float* from, std::int64_t at) {
  if (from) return load_pack<float, Width>(from + at);
  return {};
}

template <int Width, class Factors>
__device__ void update_pack(const UpdateEntry<Factors>& e, std::int64_t at) {
  const Pack<float, Width> gradient = load_pack<float, Width>(e.gradient + at);
  Pack<float, Width> value = load_pack<float, Width>(e.value + at), first = load_or_zero<Width>(e.first, at),
                     second = load_or_zero<Width>(e.second, at);
  for (int lane = 0; lane < Width; ++lane) {
    const Element now =
        updated(e.factors, {value.lane[lane], first.lane[lane], second.lane[lane]}, gradient.lane[lane]);
    value.lane[lane] = now.value;
    first.lane[lane] = now.first;
    second.lane[lane] = now.second;
  }
  store_pack(e.value + at, value);
  if (e.first) store_pack(e.first + at, first);
  if (e.second) store_pack(e.second + at, second);
  for (int a = 0; a < e.averages; ++a) {
    Pack<float, Width> average = load_pack<float, Width>(e.average[a] + at);
    for (int lane = 0; lane < Width; ++lane)
      average.lane[lane] = e.keep[a] * average.lane[lane] + e.fresh[a] * value.lane[lane];
    store_pack(e.average[a] + at, average);
  }
}

template <class Factors>
__device__ bool made_of_packs(const UpdateEntry<Factors>& e) {
  std::uintptr_t bits =
      reinterpret_cast<std::uintptr_t>(e.value) | reinterpret_cast<std::uintptr_t>(e.gradient) |
      reinterpret_cast<std::uintptr_t>(e.first) | reinterpret_cast<std::uintptr_t>(e.second);
  for (int a = 0; a < e.averages; ++a) bits |= reinterpret_cast<std::uintptr_t>(e.average[a]);
  return bits % 16 == 0;
}

/// A block updates elements_per_block elements of one entry. Nothing overlaps.
template <class Factors>
__global__ void __launch_bounds__(block) update(const __grid_constant__ Batch<Factors> batch) {
  const std::int64_t number = blockIdx.x;
  int low = 0, high = batch.entries - 1;  // the last entry whose first block is not behind this one
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (batch.first_block[middle] <= number) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const UpdateEntry<Factors>& e = batch.entry[low];
  const std::int64_t begin = (number - batch.first_block[low]) * elements_per_block;
  const std::int64_t end = begin + elements_per_block < e.count ? begin + elements_per_block : e.count;
  std::int64_t at = begin;
  if (made_of_packs(e)) {
    const std::int64_t packs = (end - begin) / 4;
    for (std::int64_t i = threadIdx.x; i < packs; i += block) update_pack<4>(e, begin + 4 * i);
    at = begin + 4 * packs;
  }
  for (std::int64_t i = at + threadIdx.x; i < end; i += block) update_pack<1>(e, i);
}

template <class Factors>
void launch(const char* name, const Launch& on, std::span<const UpdateEntry<Factors>> entries) {
  for (std::size_t done = 0; done < entries.size(); done += most_entries) {
    Batch<Factors> batch;
    batch.entries = 0;
    batch.first_block[0] = 0;
    for (const UpdateEntry<Factors>& entry :
         entries.subspan(done, std::min(most_entries, entries.size() - done))) {
      if (entry.count == 0) continue;
      batch.entry[batch.entries] = entry;
      batch.first_block[batch.entries + 1] =
          batch.first_block[batch.entries] + ceil_div(entry.count, elements_per_block);
      ++batch.entries;
    }
    const std::int64_t blocks = batch.first_block[batch.entries];
    if (blocks == 0) continue;
    update<Factors><<<static_cast<unsigned>(blocks), block, 0, on.stream>>>(batch);
    check_launch(name, on);
  }
}

struct Averaged {
  float keep, fresh;
  __device__ float operator()(float average, float value) const { return keep * average + fresh * value; }
};

}  // namespace

void launch_adamw(const Launch& on, std::span<const AdamWEntry> entries) { launch("adamw", on, entries); }
void launch_sgd(const Launch& on, std::span<const SgdEntry> entries) { launch("sgd", on, entries); }

void launch_ema(const Launch& on, const float* value, float* average, float keep, float fresh,
                std::int64_t count) {
  map("ema", on, count, Averaged{keep, fresh}, average, static_cast<const float*>(average), value);
}

}  // namespace lockstep::kernels
