// Formulas of elements (ops/formulas.h) over any inputs, and sums of terms.
#include <algorithm>
#include <array>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "lockstep/ops/elementwise.h"
#include "ops/strides.h"

namespace lockstep::kernels {
namespace {

/// The way in which an input is read along y.
struct Source {
  const void* data;
  bool half, repeated;  ///< bf16; one element along a row

  /// Elements [at, at + Width) of a row that begins at `first`.
  template <int Width>
  __device__ Pack<float, Width> load(std::int64_t first, std::int64_t at) const {
    Pack<float, Width> values;
    if (repeated) {
      const float value =
          half ? to_float(static_cast<const BF16*>(data)[first]) : static_cast<const float*>(data)[first];
      for (int lane = 0; lane < Width; ++lane) values.lane[lane] = value;
    } else if (half) {
      const Pack<BF16, Width> stored = load_pack<BF16, Width>(static_cast<const BF16*>(data) + first + at);
      for (int lane = 0; lane < Width; ++lane) values.lane[lane] = to_float(stored.lane[lane]);
    } else {
      constexpr int width = Width < 4 ? Width : 4;
      for (int part = 0; part < Width; part += width) {
        const auto stored = load_pack<float, width>(static_cast<const float*>(data) + first + at + part);
        for (int lane = 0; lane < width; ++lane) values.lane[part + lane] = stored.lane[lane];
      }
    }
    return values;
  }
};

/// y as rows, along which every input is contiguous or repeated.
template <std::size_t Inputs>
struct Broadcast {
  std::int64_t width = 1;
  ops::StridedDimensions<Inputs> rows;
  std::array<Source, Inputs> in;

  Broadcast(const std::array<Tensor, Inputs>& inputs, const Tensor& y) {
    using Offsets = typename ops::StridedDimensions<Inputs>::Offsets;
    ops::StridedDimensions<Inputs> all;
    Offsets step;  // to the next element along a dimension
    step.fill(1);
    const int dimensions = y.channel_block() == 1 ? y.shape().rank() : 0;
    for (int d = dimensions - 1; d >= 0; --d) {
      Offsets stride;
      for (std::size_t i = 0; i < Inputs; ++i) {
        const int own = d - y.shape().rank() + inputs[i].shape().rank();
        const std::int64_t extent = own < 0 ? 1 : inputs[i].size(own);
        stride[i] = extent == 1 ? 0 : step[i];
        step[i] *= extent;
      }
      all.add(y.size(d), stride);
    }
    if (all.rank == 0) {  // every input has y's layout, or one element
      Offsets stride;
      for (std::size_t i = 0; i < Inputs; ++i) stride[i] = inputs[i].numel() == 1 ? 0 : 1;
      all.rank = 1;
      all.size[0] = y.stored_numel();
      all.stride[0] = stride;
    }
    width = all.size[0];
    rows = all.without(0);
    for (std::size_t i = 0; i < Inputs; ++i)
      in[i] = {inputs[i].raw(), inputs[i].dtype() == DType::bfloat16, all.stride[0][i] == 0};
  }
};

template <int Width, class Formula, class E, std::size_t... I>
__device__ void broadcast_pack(const Broadcast<sizeof...(I)>& inputs, const Formula& formula,
                               const std::array<std::int64_t, sizeof...(I)>& first, std::int64_t at, E* to,
                               std::index_sequence<I...>) {
  map_pack<Width>(formula, to + at, inputs.in[I].template load<Width>(first[I], at)...);
}

/// The `packs` of a row, then its rest element by element.
template <class Formula, class E, std::size_t Inputs>
__global__ void __launch_bounds__(256)
    broadcast(const __grid_constant__ Broadcast<Inputs> inputs, Formula formula, std::int64_t rows,
              std::int64_t packs, E* y) {
  constexpr int packed = pack_width<E>;
  constexpr auto each = std::make_index_sequence<Inputs>();
  const std::int64_t width = inputs.width;
  for (std::int64_t row = first_row(); row < rows; row += rows_apart()) {
    const auto first = inputs.rows.offsets(row);
    E* const to = y + row * width;
    for (std::int64_t i = global_thread(); i < packs; i += global_threads())
      broadcast_pack<packed>(inputs, formula, first, i * packed, to, each);
    for (std::int64_t i = packs * packed + global_thread(); i < width; i += global_threads())
      broadcast_pack<1>(inputs, formula, first, i, to, each);
  }
}

template <class Formula, class E>
void broadcast_into(const Launch& on, const ops::Map<Formula>& op) {
  const Broadcast<Formula::inputs> inputs(op.in, op.y);
  const std::int64_t width = inputs.width, rows = op.y.stored_numel() / width;
  bool aligned = packs_at(op.y.raw()) && (rows == 1 || width % pack_width<E> == 0);
  for (const Tensor& input : op.in) aligned = aligned && packs_at(input.raw());
  const std::int64_t packs = aligned ? width / pack_width<E> : 0;
  const std::int64_t columns = aligned ? ceil_div(width, pack_width<E>) : width;
  const RowGrid launch(on, rows, columns, std::int64_t{on.multiprocessors} * 16);
  broadcast<<<launch.grid, launch.block, 0, on.stream>>>(inputs, op.formula, rows, packs,
                                                         op.y.template data<E>());
}

template <class Formula, class E, std::size_t... I>
void map_alike(const Launch& on, const ops::Map<Formula>& op, std::index_sequence<I...>) {
  map_elementwise(on, op.y.stored_numel(), op.formula, op.y.template data<E>(),
                  op.in[I].template data<E>()...);
}

template <class Formula>
void map(CudaBackend& gpu, const ops::Map<Formula>& op) {
  if (op.y.numel() == 0) return;
  by_type_of(op.y, [&]<class E>(E) {
    if constexpr (ops::broadcasts<Formula>()) {
      const bool alike = std::ranges::all_of(op.in, [&](const Tensor& input) {
        return input.dtype() == op.y.dtype() && input.shape() == op.y.shape();
      });
      if (!alike) return broadcast_into<Formula, E>(gpu.launch(), op);
    }
    map_alike<Formula, E>(gpu.launch(), op, std::make_index_sequence<Formula::inputs>());
  });
}

constexpr int reduce_threads = 256;
constexpr std::int64_t block_elements = 4096;

/// sums: the sum of each block of elements.
template <class Term, class... E>
__global__ void __launch_bounds__(reduce_threads)
    reduce_blocks(std::int64_t count, Term term, double* sums, const E*... in) {
  __shared__ double shared[32];
  const std::int64_t blocks = ceil_div(count, block_elements);
  const std::int64_t earlier = part_number() * count, last = earlier + count;
  for (std::int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const std::int64_t first = earlier + b * block_elements;
    const std::int64_t end = first + block_elements < last ? first + block_elements : last;
    double sum = 0;
    for (std::int64_t i = first + threadIdx.x; i < end; i += reduce_threads)
      sum += term(static_cast<double>(to_float(in[i]))...);
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) sums[part_number() * blocks + b] = sum;
  }
}

/// total = {the sum of the blocks, count}: one block for each part.
__global__ void __launch_bounds__(1024)
    fold_blocks(std::int64_t blocks, const double* sums, double count, double* total) {
  __shared__ double shared[32];
  double sum = 0;
  sums += part_number() * blocks;
  total += 2 * part_number();
  for (std::int64_t b = threadIdx.x; b < blocks; b += 1024) sum += sums[b];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) {
    total[0] = sum;
    total[1] = count;
  }
}

template <class E, class Term, std::size_t... I>
void reduce_into(const Launch& on, const ops::Reduce<Term>& op, int parts, std::int64_t blocks, double* sums,
                 std::index_sequence<I...>) {
  if (blocks == 0) return;
  const dim3 grid = for_parts(grid_for(blocks * reduce_threads, reduce_threads, on), parts);
  reduce_blocks<<<grid, reduce_threads, 0, on.stream>>>(
      op.in[0].numel(), op.term, sums, static_cast<const E*>(op.in[I].template data<E>())...);
}

template <class Term>
void reduce(CudaBackend& gpu, const ops::Reduce<Term>& op, int parts) {
  const Launch on = gpu.launch();
  const std::int64_t count = op.in[0].numel(), blocks = ceil_div(count, block_elements);
  const Tensor scratch = gpu.scratch(parts * blocks, DType::float64);
  double* const sums = scratch.data<double>();
  by_type_of(op.in[0], [&]<class E>(E) {
    reduce_into<E>(on, op, parts, blocks, sums, std::make_index_sequence<Term::inputs>());
  });
  fold_blocks<<<for_parts(1, parts), 1024, 0, on.stream>>>(
      blocks, sums, op.count.value_or(static_cast<double>(count)), op.total.template data<double>());
}

}  // namespace

void enter_map(CudaBackend& gpu) {
  const auto enter = [&]<class Formula>() { gpu.enter<&map<Formula>>(); };
  ops::Formulas::for_each(enter);
  ops::LossFormulas::for_each(enter);
  ops::Terms::for_each([&]<class Term>() { gpu.enter_at_once<&reduce<Term>>(); });
}

}  // namespace lockstep::kernels
