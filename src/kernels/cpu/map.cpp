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

/// to[i * Times + t] = from[i * stride] for t < Times: a run so short that a loop over it costs more than
/// what it writes.
template <int Times, class E>
void repeat_each(const E* from, std::int64_t stride, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = widened(from[i * stride]);
    for (int t = 0; t < Times; ++t) to[i * Times + t] = value;
  }
}

/// True if runs of `times` are short, and written.
template <class E>
bool repeat_short_runs(std::int64_t times, const E* from, std::int64_t stride, std::int64_t count,
                       float* to) {
  const auto repeat = [&]<int Times>(std::integral_constant<int, Times>) {
    if (stride == 1) {
      repeat_each<Times>(from, 1, count, to);
    } else {
      repeat_each<Times>(from, stride, count, to);
    }
    return true;
  };
  switch (times) {
    case 2:
      return repeat(std::integral_constant<int, 2>{});
    case 3:
      return repeat(std::integral_constant<int, 3>{});
    case 4:
      return repeat(std::integral_constant<int, 4>{});
    case 5:
      return repeat(std::integral_constant<int, 5>{});
    case 6:
      return repeat(std::integral_constant<int, 6>{});
    case 7:
      return repeat(std::integral_constant<int, 7>{});
    case 8:
      return repeat(std::integral_constant<int, 8>{});
    default:
      return false;
  }
}

/// How an input is read along the elements of y in order: y's dimensions, the innermost first, those that
/// are walked through evenly as one.
class Walk {
 public:
  Walk(const Tensor& given, const Tensor& y) : input_(&given) {
    if (y.channel_block() != 1) {  // the input is like y, or one element
      const bool alike = given.shape() == y.shape() && given.channel_block() == y.channel_block();
      add({y.stored_numel(), alike ? 1 : 0});
      return;
    }
    const int missing = y.shape().rank() - given.shape().rank();
    std::int64_t step = 1;
    for (int d = y.shape().rank() - 1; d >= 0; --d) {
      const std::int64_t extent = d < missing ? 1 : given.size(d - missing);
      if (y.size(d) != 1) add({y.size(d), extent == 1 ? 0 : step});
      step *= extent;
    }
    if (rank_ == 0) add({1, 0});
  }

  /// The inputs of y's elements [first, first + count), as floats: in place, or in `to`.
  const float* floats(std::int64_t first, std::int64_t count, float* to) const {
    if (input_->dtype() == DType::float32) return floats(input_->data<float>(), first, count, to);
    return floats(input_->data<BFloat16>(), first, count, to);
  }

 private:
  struct Dimension {
    std::int64_t extent = 1;
    std::int64_t stride = 0;  ///< elements of the input from one to the next; of the innermost: 0 or 1
  };

  void add(Dimension outer) {
    if (rank_ > 0) {
      Dimension& inner = dimensions_[static_cast<std::size_t>(rank_ - 1)];
      if (outer.stride == inner.stride * inner.extent) {
        inner.extent *= outer.extent;
        return;
      }
    }
    dimensions_[static_cast<std::size_t>(rank_++)] = outer;
  }

  template <class E>
  const float* floats(const E* from, std::int64_t first, std::int64_t count, float* to) const {
    std::array<std::int64_t, Shape::max_rank> at{};  // in each dimension
    for (std::size_t d = 0; d < static_cast<std::size_t>(rank_); ++d) {
      at[d] = first % dimensions_[d].extent;
      first /= dimensions_[d].extent;
      from += at[d] * dimensions_[d].stride;
    }
    const Dimension inner = dimensions_[0];
    if constexpr (std::is_same_v<E, float>) {
      if (inner.stride == 1 && at[0] + count <= inner.extent) return from;
    }
    const bool repeats = rank_ > 1 && dimensions_[1].stride == 0;
    for (std::int64_t done = 0;;) {
      const std::int64_t whole =  // runs that end before the last of dimension 1
          rank_ > 1 && at[0] == 0
              ? std::min(dimensions_[1].extent - 1 - at[1], (count - 1 - done) / inner.extent)
              : 0;
      if (inner.stride == 0 && whole > 0 &&
          repeat_short_runs(inner.extent, from, dimensions_[1].stride, whole, to + done)) {
        done += whole * inner.extent;
        at[1] += whole;
        from += whole * dimensions_[1].stride;
      }
      const std::int64_t run = std::min(inner.extent - at[0], count - done);
      if (inner.stride == 0) {
        std::fill_n(to + done, run, widened(*from));
      } else {
        for (std::int64_t i = 0; i < run; ++i) to[done + i] = widened(from[i]);
      }
      done += run;
      if (repeats && run == inner.extent) {  // the next are the same, in copies that double
        const std::int64_t again = std::min((dimensions_[1].extent - 1 - at[1]) * run, count - done);
        for (std::int64_t copied = 0; copied < again;) {
          const std::int64_t more = std::min(run + copied, again - copied);
          std::copy_n(to + done - run, more, to + done + copied);
          copied += more;
        }
        done += again;
        at[1] = dimensions_[1].extent - 1;
      }
      if (done == count) return to;
      from -= at[0] * inner.stride;
      at[0] = 0;
      for (std::size_t d = 1; d < static_cast<std::size_t>(rank_); ++d) {
        from += dimensions_[d].stride;
        if (++at[d] < dimensions_[d].extent) break;
        from -= at[d] * dimensions_[d].stride;
        at[d] = 0;
      }
    }
  }

  const Tensor* input_;
  std::array<Dimension, Shape::max_rank> dimensions_{};
  int rank_ = 0;
};

/// The elements of y that tiles do not cross: its last axes, as many as make enough for a tile.
std::int64_t row_width(const Tensor& y) {
  if (y.channel_block() != 1) return y.stored_numel();
  std::int64_t width = 1;
  for (int d = y.shape().rank() - 1; d >= 0 && width < tile; --d) width *= y.size(d);
  return width;
}

/// In tiles that the inputs are widened or repeated into.
template <class Formula, class E, std::size_t... I>
void broadcast(CpuBackend& cpu, const ops::Map<Formula>& op, std::index_sequence<I...> each) {
  const Tensor& y = op.y;
  const std::int64_t width = row_width(y), rows = width == 0 ? 0 : y.stored_numel() / width,
                     tiles = (width + tile - 1) / tile;
  const std::array<Walk, sizeof...(I)> walks{Walk(op.in[I], y)...};
  E* const to = y.data<E>();
  parallel_items(
      cpu.threads(), rows * tiles, elements_per_thread / std::min(tile, std::max<std::int64_t>(1, width)),
      [&](std::int64_t item) {
        float made_ready[sizeof...(I)][tile];
        const std::int64_t row = item / tiles, first = item % tiles * tile,
                           count = std::min(tile, width - first), at = row * width + first;
        const std::array<const float*, sizeof...(I)> in{walks[I].floats(at, count, made_ready[I])...};
        E* const out = to + at;
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
