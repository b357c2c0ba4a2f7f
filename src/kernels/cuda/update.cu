// Steps of optimizers by their rules (ops/update.h), moving averages, sums of gradients and of their squares.
// A step of many tensors and their EMA weights is one pass: the kernel's argument describes the tensors, and
// a block finds the tensor of its elements.
#include "lockstep/ops/update.h"

#include "comm/sum_plan.h"
#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "lockstep/ops/elementwise.h"

namespace lockstep::kernels {
namespace {

constexpr int block = 256;
constexpr std::int64_t elements_per_block = 4096;
constexpr int max_averages = 4;  // of one pass; more take another
constexpr int max_entries = 96;  // of one launch, whose arguments they are

/// One tensor of a launch.
template <class Rule>
struct UpdateEntry {
  static constexpr int states = Rule::states;
  Rule rule;
  std::int64_t count;
  float* value;
  const float* gradient;
  float* state[states > 0 ? states : 1];
  int averages;
  float* average[max_averages];
  float keep[max_averages], fresh[max_averages];
  BF16* rounded;  // null: absent
};

template <class Rule>
using Updates = Batch<UpdateEntry<Rule>, max_entries>;

template <int Width, class Rule, std::size_t... I>
__device__ void update_pack(const UpdateEntry<Rule>& e, std::int64_t at, std::index_sequence<I...>) {
  const Pack<float, Width> gradient = load_pack<float, Width>(e.gradient + at);
  Pack<float, Width> value = load_pack<float, Width>(e.value + at);
  [[maybe_unused]] Pack<float, Width> state[] = {load_pack<float, Width>(e.state[I] + at)..., value};
  for (int lane = 0; lane < Width; ++lane)
    e.rule(value.lane[lane], gradient.lane[lane], state[I].lane[lane]...);
  store_pack(e.value + at, value);
  (store_pack(e.state[I] + at, state[I]), ...);
  if (e.rounded) {
    Pack<BF16, Width> rounded_value;
    for (int lane = 0; lane < Width; ++lane) rounded_value.lane[lane] = rounded<BF16>(value.lane[lane]);
    store_pack(e.rounded + at, rounded_value);
  }
  for (int a = 0; a < e.averages; ++a) {
    Pack<float, Width> average = load_pack<float, Width>(e.average[a] + at);
    for (int lane = 0; lane < Width; ++lane)
      average.lane[lane] = e.keep[a] * average.lane[lane] + e.fresh[a] * value.lane[lane];
    store_pack(e.average[a] + at, average);
  }
}

template <class Rule>
__device__ bool made_of_packs(const UpdateEntry<Rule>& e) {
  const auto bits_of = [](const void* address) { return reinterpret_cast<std::uintptr_t>(address); };
  std::uintptr_t bits = bits_of(e.value) | bits_of(e.gradient);
  for (int s = 0; s < e.states; ++s) bits |= bits_of(e.state[s]);
  for (int a = 0; a < e.averages; ++a) bits |= bits_of(e.average[a]);
  return bits % 16 == 0 && bits_of(e.rounded) % 8 == 0;
}

/// A block updates elements_per_block elements of one entry. Nothing overlaps.
template <class Rule>
__global__ void __launch_bounds__(block) update_elements(const __grid_constant__ Updates<Rule> batch) {
  constexpr auto states = std::make_index_sequence<Rule::states>();
  const std::int64_t number = blockIdx.x;
  const int which = batch.entry_of(number);
  const UpdateEntry<Rule>& e = batch.entry[which];
  const std::int64_t begin = (number - batch.first_block[which]) * elements_per_block;
  const std::int64_t end = begin + elements_per_block < e.count ? begin + elements_per_block : e.count;
  std::int64_t at = begin;
  if (made_of_packs(e)) {
    const std::int64_t packs = (end - begin) / 4;
    for (std::int64_t i = threadIdx.x; i < packs; i += block) update_pack<4>(e, begin + 4 * i, states);
    at = begin + 4 * packs;
  }
  for (std::int64_t i = at + threadIdx.x; i < end; i += block) update_pack<1>(e, i, states);
}

template <class Rule>
void describe(const ops::ParameterUpdate<Rule>& update, UpdateEntry<Rule>& entry) {
  entry.rule = update.rule;
  entry.count = update.value.numel();
  entry.value = update.value.template data<float>();
  entry.gradient = update.gradient.template data<float>();
  for (std::size_t s = 0; s < update.state.size(); ++s)
    entry.state[s] = update.state[s].template data<float>();
  entry.averages = 0;
  for (const ops::EmaTarget& target :
       update.ema.first(std::min<std::size_t>(max_averages, update.ema.size()))) {
    const int a = entry.averages++;
    entry.average[a] = target.average.template data<float>();
    entry.keep[a] = static_cast<float>(target.decay);
    entry.fresh[a] = static_cast<float>(1.0 - target.decay);
  }
  entry.rounded = data_or_null<BF16>(update.rounded);
}

template <class Rule>
void launch_batch(const Launch& on, Updates<Rule>& batch) {
  if (batch.entries > 0) update_elements<Rule><<<batch.blocks(), block, 0, on.stream>>>(batch);
  batch.entries = 0;
}

template <class Rule>
void update(CudaBackend& gpu, const ops::Update<Rule>& op) {
  static_assert(fits<Updates<Rule>>);
  const Launch on = gpu.launch();
  Updates<Rule> batch;
  for (const ops::ParameterUpdate<Rule>& update : op.updates) {
    if (update.value.numel() == 0) continue;
    if (batch.entries == batch.room) launch_batch(on, batch);
    describe(update, batch.add(ceil_div(update.value.numel(), elements_per_block)));
  }
  launch_batch(on, batch);
  for (const ops::ParameterUpdate<Rule>& update : op.updates) {
    for (std::size_t a = max_averages; a < update.ema.size(); ++a)
      gpu.run(ops::Ema{update.value, update.ema[a].average, update.ema[a].decay});
  }
}

struct Averaged {
  float keep, fresh;
  __device__ float operator()(float average, float value) const { return keep * average + fresh * value; }
};

void ema(CudaBackend& gpu, const ops::Ema& op) {
  float* const average = op.average.data<float>();
  map_elementwise(gpu.launch(), op.value.numel(),
                  Averaged{static_cast<float>(op.decay), static_cast<float>(1.0 - op.decay)}, average,
                  average, op.value.data<float>());
}

struct Added {
  __device__ float operator()(float a, float b) const { return a + b; }
  __device__ double operator()(double a, double b) const { return a + b; }
  __device__ float operator()(float a, double b) const { return a + static_cast<float>(b); }
};

void accumulate(CudaBackend& gpu, const ops::Accumulate& op) {
  const auto add = [&]<class Into, class X>(Into, X) {
    Into* const into = op.into.data<Into>();
    map_elementwise(gpu.launch(), op.into.stored_numel(), Added{}, into, into, op.x.data<X>());
  };
  if (op.x.dtype() == DType::float32) {
    add(float{}, float{});
  } else if (op.into.dtype() == DType::float64) {
    add(double{}, double{});
  } else {
    add(float{}, double{});
  }
}

/// One tensor whose squares are summed.
struct Squared {
  std::int64_t count;
  const float* x;
  double* blocks;
};
using SquaredTensors = Batch<Squared, 768>;

/// One block of threads per block of elements. The square of a float32 is exact in float64.
__global__ void __launch_bounds__(block) sum_squares(const __grid_constant__ SquaredTensors batch) {
  __shared__ double shared[32];
  constexpr std::int64_t block_elements = ops::BlockSumsOfSquares::block_elements;
  const std::int64_t number = blockIdx.x;
  const int which = batch.entry_of(number);
  const Squared& e = batch.entry[which];
  const std::int64_t b = number - batch.first_block[which], first = b * block_elements;
  const std::int64_t end = first + block_elements < e.count ? first + block_elements : e.count;
  double sum = 0;
  for (std::int64_t i = first + threadIdx.x; i < end; i += block) {
    const auto value = static_cast<double>(e.x[i]);
    sum += value * value;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) e.blocks[b] = sum;
}

void block_sums_of_squares(CudaBackend& gpu, const ops::BlockSumsOfSquares& op) {
  static_assert(fits<SquaredTensors>);
  const Launch on = gpu.launch();
  SquaredTensors batch;
  const auto launch = [&] {
    if (batch.entries > 0) sum_squares<<<batch.blocks(), block, 0, on.stream>>>(batch);
    batch.entries = 0;
  };
  for (const auto& [x, blocks] : op.parts) {
    if (blocks.numel() == 0) continue;
    if (batch.entries == batch.room) launch();
    batch.add(blocks.numel()) = {x.numel(), x.data<float>(), blocks.data<double>()};
  }
  launch();
}

template <int Width, class T>
__device__ Pack<T, Width> sum_of(const Pack<T, Width>& left, const Pack<T, Width>& right) {
  Pack<T, Width> sum;
  for (int lane = 0; lane < Width; ++lane) sum.lane[lane] = left.lane[lane] + right.lane[lane];
  return sum;
}

/// The sum of one pack of all planes. Four planes are read at once: a tree over n leaves is the same as one
/// over their quarters, because it splits at powers of two.
template <int Depth, int Width, class T>
__device__ Pack<T, Width> sum_of_planes(const T* planes, std::int64_t stride, int parts) {
  constexpr int at_once = 4;
  const auto load = [&](int four) {
    const int left = parts - four * at_once;
    const T* const from = planes + four * at_once * stride;
    Pack<T, Width> in[at_once];
#pragma unroll
    for (int p = 0; p < at_once; ++p) {
      if (p < left) in[p] = load_pack<T, Width>(from + p * stride);
    }
    if (left == 1) return in[0];
    const Pack<T, Width> two = sum_of(in[0], in[1]);
    if (left == 2) return two;
    return sum_of(two, left == 3 ? in[2] : sum_of(in[2], in[3]));
  };
  const int fours = (parts + at_once - 1) / at_once;
  return comm::sum_along_tree<Depth>(comm::TreeSteps{fours}, fours, load, &sum_of<Width, T>);
}

/// A block sums one row of the table.
template <int Depth, class T>
__global__ void __launch_bounds__(block)
    add_planes(const T* planes, T* sums, const std::int64_t* table, int parts) {
  constexpr int width = pack_width<T>;
  const std::int64_t* const row = table + std::int64_t{4} * blockIdx.x;
  const T* const from = planes + row[0];
  const std::int64_t stride = row[1];
  T* const to = sums + row[2];
  const int count = static_cast<int>(row[3]);
  const bool packs = ((reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to) |
                       static_cast<std::uintptr_t>(stride) * sizeof(T)) %
                      16) == 0;
  const int whole = packs ? count / width * width : 0;
  for (int i = static_cast<int>(threadIdx.x) * width; i < whole; i += block * width)
    store_pack(to + i, sum_of_planes<Depth, width>(from + i, stride, parts));
  for (int i = whole + static_cast<int>(threadIdx.x); i < count; i += block)
    store_pack(to + i, sum_of_planes<Depth, 1>(from + i, stride, parts));
}

void add_along_tree(CudaBackend& gpu, const ops::AddAlongTree& op) {
  constexpr int few = 32, few_deep = 4;  // with few planes few values wait, which needs fewer registers
  const auto chunks = static_cast<unsigned>(op.table.size(0));
  if (chunks == 0) return;
  const auto run = [&]<class T>(T) {
    const auto add = [&](auto* kernel) {
      kernel<<<chunks, block, 0, gpu.launch().stream>>>(op.planes.data<T>(), op.sums.data<T>(),
                                                        op.table.data<std::int64_t>(), op.parts);
    };
    op.parts <= few ? add(add_planes<few_deep, T>) : add(add_planes<comm::deepest_tree, T>);
  };
  op.sums.dtype() == DType::float64 ? run(double{}) : run(float{});
}

}  // namespace

void enter_update(CudaBackend& gpu) {
  ops::Rules::for_each([&]<class Rule>() { gpu.enter<&update<Rule>>(); });
  gpu.enter<&ema, &accumulate, &block_sums_of_squares, &add_along_tree>();
}

}  // namespace lockstep::kernels
