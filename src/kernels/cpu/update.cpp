// Steps of optimizers by their rules (ops/update.h), and exponential moving averages: one pass over memory.
// Elements are independent, so a tensor may be split anywhere without changing a bit.
#include "lockstep/ops/update.h"

#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "lockstep/comm/reduction_tree.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 8192;
constexpr std::int64_t tile = 2048;  // updated, then averaged while still in the cache

template <class Rule, std::size_t... I>
void update_range(const Rule rule, std::int64_t begin, std::int64_t end, float* value, const float* gradient,
                  const std::array<float*, sizeof...(I)> state, std::index_sequence<I...>) {
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) rule(value[i], gradient[i], state[I][i]...);
}

void average_range(double decay, std::int64_t begin, std::int64_t end, const float* value, float* average) {
  const float keep = static_cast<float>(decay), fresh = static_cast<float>(1.0 - decay);
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) average[i] = keep * average[i] + fresh * value[i];
}

void round_range(std::int64_t begin, std::int64_t end, const float* value, BFloat16* rounded) {
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) rounded[i].bits = bfloat16_bits(value[i]);
}

/// In tiles, each followed by the EMA weights and the rounded copies of the new values.
template <class Rule>
void update_one(CpuBackend& cpu, const ops::ParameterUpdate<Rule>& update) {
  float* const value = update.value.template data<float>();
  const float* const gradient = update.gradient.template data<float>();
  BFloat16* const rounded = update.rounded ? update.rounded.template data<BFloat16>() : nullptr;
  std::array<float*, Rule::states> state;
  for (std::size_t i = 0; i < state.size(); ++i) state[i] = update.state[i].template data<float>();
  parallel_ranges(
      cpu.threads(), update.value.numel(), elements_per_thread, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t begin = first; begin < last; begin += tile) {
          const std::int64_t end = std::min(last, begin + tile);
          update_range(update.rule, begin, end, value, gradient, state,
                       std::make_index_sequence<Rule::states>());
          for (const ops::EmaTarget& target : update.ema)
            average_range(target.decay, begin, end, value, static_cast<float*>(target.average.raw()));
          if (rounded) round_range(begin, end, value, rounded);
        }
      });
}

template <class Rule>
void update(CpuBackend& cpu, const ops::Update<Rule>& op) {
  for (const ops::ParameterUpdate<Rule>& one : op.updates) update_one(cpu, one);
}

void ema(CpuBackend& cpu, const ops::Ema& op) {
  parallel_ranges(cpu.threads(), op.value.numel(), elements_per_thread,
                  [from = op.value.data<float>(), to = op.average.data<float>(), decay = op.decay](
                      std::int64_t begin, std::int64_t end) { average_range(decay, begin, end, from, to); });
}

constexpr std::int64_t sum_tile = 512;  // of a plane; few enough for a sum on the stack at each tree node

/// to = the sum of `leaves` planes along their tree: `count` elements, at most a tile.
template <class T>
void sum_tree(const T* planes, std::int64_t stride, int leaves, std::int64_t count, T* to) {
  if (leaves == 1) {
    std::copy_n(planes, count, to);
    return;
  }
  const int left = comm::left_leaves(leaves);
  T right[sum_tile];
  sum_tree(planes, stride, left, count, to);
  sum_tree(planes + left * stride, stride, leaves - left, count, right);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i) to[i] += right[i];
}

template <class T>
void sum_chunks(CpuBackend& cpu, const ops::AddAlongTree& op) {
  constexpr std::int64_t chunks_per_thread = elements_per_thread / ops::AddAlongTree::max_chunk;
  parallel_items(cpu.threads(), op.table.size(0), chunks_per_thread,
                 [planes = op.planes.data<T>(), sums = op.sums.data<T>(),
                  table = op.table.data<std::int64_t>(), parts = op.parts](std::int64_t chunk) {
                   const std::int64_t* const row = table + 4 * chunk;
                   for (std::int64_t i = 0; i < row[3]; i += sum_tile)
                     sum_tree<T>(planes + row[0] + i, row[1], parts, std::min(sum_tile, row[3] - i),
                                 sums + row[2] + i);
                 });
}

void add_along_tree(CpuBackend& cpu, const ops::AddAlongTree& op) {
  op.sums.dtype() == DType::float64 ? sum_chunks<double>(cpu, op) : sum_chunks<float>(cpu, op);
}

}  // namespace

void enter_update(CpuBackend& cpu) {
  ops::Rules::for_each([&]<class Rule>() { cpu.enter<&update<Rule>>(); });
  cpu.enter<&ema, &add_along_tree>();
}

}  // namespace lockstep::kernels
