// Formulas of elements (ops/formulas.h) over any inputs, and sums of terms.
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/stored.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 8192;
constexpr std::int64_t tile = 1024;  // elements whose inputs are made ready together

template <std::size_t Count>
bool all_alike(const std::array<Tensor, Count>& in, const Tensor& y) {
  return std::ranges::all_of(
      in, [&](const Tensor& input) { return input.dtype() == y.dtype() && input.shape() == y.shape(); });
}

/// The formula is a copy that no store can change.
template <class Formula, class E, std::size_t... I>
void compute(const Formula formula, std::int64_t begin, std::int64_t end, E* y,
             const std::array<const E*, sizeof...(I)> in, std::index_sequence<I...>) {
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) put(y[i], formula(widened(in[I][i])...));
}

/// What the formula makes of padding lanes.
template <class Formula, std::size_t... I>
float of_zeros(const Formula& formula, std::index_sequence<I...>) {
  return formula((static_cast<void>(I), 0.0f)...);
}

/// How an input is read along y: element i of y's dimension d is stride[d] * i elements further.
struct Walk {
  const Tensor* input;
  std::array<std::int64_t, Shape::max_rank> stride{};

  Walk(const Tensor& given, const Tensor& y) : input(&given) {
    std::int64_t step = 1;
    const int missing = y.shape().rank() - given.shape().rank();
    for (int d = given.shape().rank() - 1; d >= 0; --d) {
      stride[static_cast<std::size_t>(d + missing)] = given.size(d) == 1 ? 0 : step;
      step *= given.size(d);
    }
  }
  std::int64_t offset(const Tensor& y, std::int64_t row) const {
    std::int64_t at = 0;
    for (int d = y.shape().rank() - 2; d >= 0; --d) {
      at += row % y.size(d) * stride[static_cast<std::size_t>(d)];
      row /= y.size(d);
    }
    return at;
  }
  /// `count` elements from `at`, one or none apart, as floats: in place, or in `room`.
  const float* floats(std::int64_t at, bool repeated, std::int64_t count, float* room) const {
    if (input->dtype() == DType::float32) {
      const float* const from = input->data<float>() + at;
      if (!repeated) return from;
      std::fill_n(room, count, *from);
    } else {
      const BFloat16* const from = input->data<BFloat16>() + at;
      for (std::int64_t i = 0; i < count; ++i) room[i] = widened(from[repeated ? 0 : i]);
    }
    return room;
  }
};

/// Row by row of y, in tiles that the inputs are widened or repeated into.
template <class Formula, class E, std::size_t... I>
void broadcast(CpuBackend& cpu, const ops::Map<Formula>& op, std::index_sequence<I...> each) {
  const Tensor& y = op.y;
  const bool flat = y.channel_block() != 1 || y.shape().rank() == 0;  // all inputs are like y, or one element
  const std::int64_t width = flat ? y.stored_numel() : y.size(-1),
                     rows = width == 0 ? 0 : y.stored_numel() / width;
  const std::array<Walk, sizeof...(I)> walks{Walk(op.in[I], y)...};
  const auto steps = [&](const Walk& walk) {
    return flat ? walk.input->shape() == y.shape() && walk.input->channel_block() == y.channel_block()
                : walk.stride[static_cast<std::size_t>(y.shape().rank() - 1)] != 0;
  };
  const std::array<bool, sizeof...(I)> repeated{!steps(walks[I])...};
  const std::int64_t tiles = (width + tile - 1) / tile;
  E* const to = y.data<E>();
  parallel_items(cpu.threads(), rows * tiles,
                 elements_per_thread / std::min(tile, std::max<std::int64_t>(1, width)),
                 [&](std::int64_t item) {
                   float room[sizeof...(I)][tile];
                   const std::int64_t row = item / tiles, first = item % tiles * tile,
                                      count = std::min(tile, width - first);
                   const auto at = [&](std::size_t i) {
                     return (flat ? 0 : walks[i].offset(y, row)) + (repeated[i] ? 0 : first);
                   };
                   const std::array<const float*, sizeof...(I)> in{
                       walks[I].floats(at(I), repeated[I], count, room[I])...};
                   E* const out = to + row * width + first;
                   if constexpr (std::is_same_v<E, float>) {
                     compute<Formula, float>(op.formula, 0, count, out, in, each);
                   } else {
                     float made[tile];
                     compute<Formula, float>(op.formula, 0, count, made, in, each);
#pragma GCC ivdep
                     for (std::int64_t i = 0; i < count; ++i) put(out[i], made[i]);
                   }
                 });
}

template <class Formula>
void map(CpuBackend& cpu, const ops::Map<Formula>& op) {
  constexpr auto each = std::make_index_sequence<Formula::inputs>();
  by_type_of(op.y, [&]<class E>(E) {
    if constexpr (ops::broadcasts<Formula>()) {
      if (!all_alike(op.in, op.y)) {
        broadcast<Formula, E>(cpu, op, each);
        return zero_padding(op.y);
      }
    }
    std::array<const E*, Formula::inputs> in;
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = op.in[i].template data<E>();
    E* const to = op.y.template data<E>();
    parallel_ranges(cpu.threads(), op.y.stored_numel(), elements_per_thread,
                    [=, formula = op.formula](std::int64_t begin, std::int64_t end) {
                      compute<Formula, E>(formula, begin, end, to, in, each);
                    });
    if (of_zeros(op.formula, each) != 0) zero_padding(op.y);
  });
}

constexpr std::int64_t block_elements = 4096;

Doubles four(const float* from) {
  Doubles lanes;
  for (int lane = 0; lane < 4; ++lane) lanes[lane] = static_cast<double>(from[lane]);
  return lanes;
}

/// Of elements [i, end), in 8 lanes.
template <class Term, std::size_t... I>
double sum_of_terms(const Term term, std::int64_t i, std::int64_t end,
                    const std::array<const float*, sizeof...(I)> in, std::index_sequence<I...>) {
  Doubles lanes[2] = {};
  for (; i + 8 <= end; i += 8) {
    for (int half = 0; half < 2; ++half) lanes[half] += term(four(in[I] + i + 4 * half)...);
  }
  double sum = sum_of(lanes[0] + lanes[1]);
  for (; i < end; ++i) sum += term(static_cast<double>(in[I][i])...);
  return sum;
}

/// In blocks, which are summed in order.
template <class Term>
void reduce(CpuBackend& cpu, const ops::Reduce<Term>& op) {
  std::array<const float*, Term::inputs> in;
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = op.in[i].template data<float>();
  const std::int64_t count = op.in[0].numel(), blocks = (count + block_elements - 1) / block_elements;
  const Tensor sums_holder = cpu.scratch(blocks, DType::float64);
  double* const sums = sums_holder.data<double>();
  parallel_items(cpu.threads(), blocks, 1, [=, term = op.term](std::int64_t block) {
    const std::int64_t first = block * block_elements;
    sums[block] = sum_of_terms(term, first, std::min(count, first + block_elements), in,
                               std::make_index_sequence<Term::inputs>());
  });
  double sum = 0;
  for (std::int64_t block = 0; block < blocks; ++block) sum += sums[block];
  op.total.template data<double>()[0] = sum;
  op.total.template data<double>()[1] = static_cast<double>(count);
}

template <class... Formula>
void enter_maps(CpuBackend& cpu, ops::FormulaList<Formula...>) {
  (cpu.enter<&map<Formula>>(), ...);
}

template <class... Term>
void enter_reductions(CpuBackend& cpu, ops::FormulaList<Term...>) {
  (cpu.enter<&reduce<Term>>(Computes::in_float32), ...);
}

}  // namespace

void enter_map(CpuBackend& cpu) {
  enter_maps(cpu, ops::Formulas{});
  enter_maps(cpu, ops::LossFormulas{});
  enter_reductions(cpu, ops::Terms{});
}

}  // namespace lockstep::kernels
