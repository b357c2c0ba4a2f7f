// Weights of convolutions between their own layout and channels last, with conversions: transpositions of
// many small matrices of many weights, in one launch.
#include <algorithm>

#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/kernels.h"

namespace lockstep::kernels {
namespace {

constexpr int threads = 256, tile = 2048;  // elements of a tile
constexpr int max_positions = 64;          // of a tile

/// Matrices [rows, columns] behind one another, which become [columns, rows].
struct Matrices {
  const void* from;
  void* to;
  int rows, columns, tile_rows, tile_columns;

  __host__ __device__ unsigned tiles_down() const {
    return static_cast<unsigned>((rows + tile_rows - 1) / tile_rows);
  }
  __host__ __device__ unsigned tiles() const {
    return tiles_down() * static_cast<unsigned>((columns + tile_columns - 1) / tile_columns);
  }
};
/// All weights of a model, or the parts of one gradient: their launches are many, and copy the argument.
using ManyMatrices = Batch<Matrices, 512>;
using FewMatrices = Batch<Matrices, 16>;

__device__ int smaller(int a, int b) { return a < b ? a : b; }

/// A block transposes a tile in shared memory, whose rows have an odd length: no two threads of a column then
/// use one bank. Indices within a matrix have 32 bits.
template <bool accumulate, class From, class To, class Many>
__global__ void __launch_bounds__(threads) transpose_matrices(const __grid_constant__ Many batch) {
  __shared__ From shared[tile];
  const std::int64_t number = blockIdx.x;
  const int which = batch.entry_of(number);
  const Matrices& m = batch.entry[which];
  const auto at = static_cast<unsigned>(number - batch.first_block[which]);
  const unsigned matrix = at / m.tiles(), within = at - matrix * m.tiles(), right = within / m.tiles_down();
  const int top = static_cast<int>(within - right * m.tiles_down()) * m.tile_rows;
  const int left = static_cast<int>(right) * m.tile_columns;
  const int rows = smaller(m.tile_rows, m.rows - top), columns = smaller(m.tile_columns, m.columns - left);
  const int row_length = columns | 1, count = rows * columns;
  const std::int64_t first = static_cast<std::int64_t>(matrix) * m.rows * m.columns;
  const From* const from = static_cast<const From*>(m.from) + first;
  To* const to = static_cast<To*>(m.to) + first;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
    const int row = i / columns, column = i - row * columns;
    shared[row * row_length + column] = from[(top + row) * m.columns + left + column];
  }
  __syncthreads();
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
    const int column = i / rows, row = i - column * rows;
    To& target = to[(left + column) * m.rows + top + row];
    const float value = to_float(shared[row * row_length + column]);
    target = rounded<To>(accumulate ? to_float(target) + value : value);
  }
}

/// Adds weights [O, channels, positions] to a batch. packs: they become [O, positions, channels]; otherwise
/// they are that.
template <class Many>
void add(Many& batch, const void* from, void* to, std::int64_t count, std::int64_t channels,
         std::int64_t positions, bool packs) {
  const bool is_copy = channels == 1 || positions == 1;
  const std::int64_t matrices = is_copy ? 1 : count / (channels * positions);
  const auto short_side = static_cast<int>(is_copy ? 1 : positions);
  const auto long_side = static_cast<int>(is_copy ? count : channels);
  const int tile_short = std::min(short_side, max_positions);
  const int tile_long = std::min(long_side, is_copy ? tile - 1 : tile / (tile_short + 1) - 1);
  const Matrices added = packs ? Matrices{from, to, long_side, short_side, tile_long, tile_short}
                               : Matrices{from, to, short_side, long_side, tile_short, tile_long};
  batch.add(matrices * added.tiles()) = added;
}

template <bool accumulate, class From, class To, class Many>
void launch(const Launch& on, Many& batch) {
  static_assert(fits<Many>);
  if (batch.entries > 0)
    transpose_matrices<accumulate, From, To><<<batch.blocks(), threads, 0, on.stream>>>(batch);
  batch.entries = 0;
}

}  // namespace

void pack_weights(const Launch& on, std::span<const ops::PackedWeight> weights) {
  const auto pack_all = [&]<class From, class To>(From, To) {
    ManyMatrices batch;
    for (const auto& [value, packed] : weights) {
      if (value.dtype() != dtype_of<From> || packed.dtype() != dtype_of<To> || value.numel() == 0) continue;
      if (batch.entries == batch.room) launch<false, From, To>(on, batch);
      add(batch, value.raw(), packed.raw(), value.numel(), value.size(1), positions_of(value.shape()), true);
    }
    launch<false, From, To>(on, batch);
  };
  pack_all(float{}, BF16{});
  pack_all(float{}, float{});
  pack_all(BF16{}, BF16{});
  pack_all(BF16{}, float{});
}

void unpack_weights(const Launch& on, const Tensor& sums, const Tensor& dweight, bool channels_last,
                    bool accumulate) {
  const std::int64_t parts = sums.size(0), count = dweight.numel() / parts;
  const std::int64_t channels = channels_last ? dweight.size(-3) : 1;
  const std::int64_t positions = dweight.size(-2) * dweight.size(-1);
  by_type_of(sums, [&]<class From>(From) {
    FewMatrices batch;
    const auto launch_batch = [&] {
      accumulate ? launch<true, From, float>(on, batch) : launch<false, From, float>(on, batch);
    };
    for (std::int64_t part = 0; part < parts; ++part) {
      if (batch.entries == batch.room) launch_batch();
      add(batch, sums.data<From>() + part * sums.size(1), dweight.data<float>() + part * count, count,
          channels, positions, false);
    }
    launch_batch();
  });
}

}  // namespace lockstep::kernels
