// Formulas of elements (ops/formulas.h) over any inputs, and sums of terms.
#include "kernels/cpu/channel_form.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "lockstep/ops/elementwise.h"
#include "ops/strides.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t elements_per_thread = 8192;
constexpr std::int64_t tile = 1024;  // elements whose inputs are prepared together

template <std::size_t Count>
bool all_alike(const std::array<Tensor, Count>& in, const Tensor& y) {
  return std::ranges::all_of(
      in, [&](const Tensor& input) { return input.dtype() == y.dtype() && input.shape() == y.shape(); });
}

/// The formula is a copy, which no store can change. It is always inlined, because a loop with a call is not
/// vectorised.
template <class Formula, class E, std::size_t... I>
[[gnu::flatten]] void compute(const Formula formula, std::int64_t begin, std::int64_t end, E* y,
                              const std::array<const E*, sizeof...(I)> in, std::index_sequence<I...>) {
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) store(y[i], formula(to_float(in[I][i])...));
}

/// The formula's result in padding lanes.
template <class Formula, std::size_t... I>
float of_zeros(const Formula& formula, std::index_sequence<I...>) {
  return formula((static_cast<void>(I), 0.0f)...);
}

/// to[i * Times + t] = from[i * stride] for t < Times: for runs so short that a loop over them costs more
/// than their stores.
template <int Times, class E>
void repeat_each(const E* from, std::int64_t stride, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = to_float(from[i * stride]);
    for (int t = 0; t < Times; ++t) to[i * Times + t] = value;
  }
}

/// If runs of `times` are short, writes them and returns true.
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

/// Reads an input along the elements of y in order.
class BroadcastReader {
 public:
  BroadcastReader(const Tensor& input, const Tensor& y) : input_(&input) {
    if (y.channel_block() != 1) {  // the input has y's shape, or one element
      const bool alike = input.shape() == y.shape() && input.channel_block() == y.channel_block();
      dimensions_.add(y.stored_numel(), {alike ? 1 : 0});
    } else {
      const int missing = y.shape().rank() - input.shape().rank();
      std::int64_t step = 1;
      for (int d = y.shape().rank() - 1; d >= 0; --d) {
        const std::int64_t extent = d < missing ? 1 : input.size(d - missing);
        dimensions_.add(y.size(d), {extent == 1 ? 0 : step});
        step *= extent;
      }
    }
    if (dimensions_.rank == 0) {
      dimensions_.rank = 1;
      dimensions_.size[0] = 1;
    }
  }

  /// The inputs of y's elements [first, first + count) as floats: in place, or in `to`. Not inlined, so that
  /// all formulas share one copy for each instruction set.
  [[gnu::noinline]] const float* floats(std::int64_t first, std::int64_t count, float* to) const {
    const float* result = nullptr;
    run_wide([&] {
      by_type_of(*input_, [&]<class E>(E) { result = read(input_->data<E>(), first, count, to); });
    });
    return result;
  }

 private:
  /// The stride of the innermost dimension is 0 or 1.
  template <class E>
  const float* read(const E* from, std::int64_t first, std::int64_t count, float* to) const {
    const auto& [rank, size, stride] = dimensions_;
    std::int64_t at[Shape::max_rank] = {};  // the index in each dimension
    for (int d = 0; d < rank; ++d) {
      at[d] = first % size[d];
      first /= size[d];
      from += at[d] * stride[d][0];
    }
    const std::int64_t inner = size[0], inner_stride = stride[0][0], outer_stride = stride[1][0];
    if constexpr (std::is_same_v<E, float>) {
      if (inner_stride == 1 && at[0] + count <= inner) return from;
    }
    const bool repeats = rank > 1 && outer_stride == 0;
    for (std::int64_t done = 0;;) {
      const std::int64_t whole =  // runs that end before the last of dimension 1
          rank > 1 && at[0] == 0 ? std::min(size[1] - 1 - at[1], (count - 1 - done) / inner) : 0;
      if (inner_stride == 0 && whole > 0 && repeat_short_runs(inner, from, outer_stride, whole, to + done)) {
        done += whole * inner;
        at[1] += whole;
        from += whole * outer_stride;
      }
      const std::int64_t run = std::min(inner - at[0], count - done);
      if (inner_stride == 0) {
        std::fill_n(to + done, run, to_float(*from));
      } else {
        for (std::int64_t i = 0; i < run; ++i) to[done + i] = to_float(from[i]);
      }
      done += run;
      if (repeats && run == inner) {  // copies the runs that follow, doubling each time
        const std::int64_t again = std::min((size[1] - 1 - at[1]) * run, count - done);
        for (std::int64_t copied = 0; copied < again;) {
          const std::int64_t more = std::min(run + copied, again - copied);
          std::copy_n(to + done - run, more, to + done + copied);
          copied += more;
        }
        done += again;
        at[1] = size[1] - 1;
      }
      if (done == count) return to;
      from -= at[0] * inner_stride;
      at[0] = 0;
      for (int d = 1; d < rank; ++d) {
        from += stride[d][0];
        if (++at[d] < size[d]) break;
        from -= at[d] * stride[d][0];
        at[d] = 0;
      }
    }
  }

  const Tensor* input_;
  ops::StridedDimensions<1> dimensions_;
};

/// The elements of y that tiles do not cross: its last axes, as many as make enough for a tile.
std::int64_t row_width(const Tensor& y) {
  if (y.channel_block() != 1) return y.stored_numel();
  std::int64_t width = 1;
  for (int d = y.shape().rank() - 1; d >= 0 && width < tile; --d) width *= y.size(d);
  return width;
}

/// In tiles, into which the inputs are converted or repeated.
template <class Formula, class E, std::size_t... I>
void broadcast(CpuBackend& cpu, const ops::Map<Formula>& op, std::index_sequence<I...> each) {
  const Tensor& y = op.y;
  const std::int64_t width = row_width(y), rows = width == 0 ? 0 : y.stored_numel() / width,
                     tiles = (width + tile - 1) / tile;
  const std::array<BroadcastReader, sizeof...(I)> readers{BroadcastReader(op.in[I], y)...};
  E* const to = y.data<E>();
  parallel_items(cpu.threads(), rows * tiles,
                 elements_per_thread / std::min(tile, std::max<std::int64_t>(1, width)),
                 [&](std::int64_t item) {
                   float ready[sizeof...(I)][tile];
                   const std::int64_t row = item / tiles, first = item % tiles * tile,
                                      count = std::min(tile, width - first), at = row * width + first;
                   const std::array<const float*, sizeof...(I)> in{readers[I].floats(at, count, ready[I])...};
                   E* const out = to + at;
                   if constexpr (std::is_same_v<E, float>) {
                     compute<Formula, float>(op.formula, 0, count, out, in, each);
                   } else {
                     float results[tile];
                     compute<Formula, float>(op.formula, 0, count, results, in, each);
#pragma GCC ivdep
                     for (std::int64_t i = 0; i < count; ++i) store(out[i], results[i]);
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

/// The sum of elements [i, end), in 8 lanes.
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
  op.total.template data<double>()[1] = op.count.value_or(static_cast<double>(count));
}

}  // namespace

void enter_map(CpuBackend& cpu) {
  const auto enter = [&]<class Formula>() { cpu.enter<&map<Formula>>(); };
  ops::Formulas::for_each(enter);
  ops::LossFormulas::for_each(enter);
  ops::Terms::for_each([&]<class Term>() { cpu.enter<&reduce<Term>>(Computes::in_float32); });
}

}  // namespace lockstep::kernels
