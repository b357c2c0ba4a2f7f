// Rows of a table by number, and their gradient, summed in the order of the indices: uses are sorted by row
// (stably), and a block sums one row's.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/error.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/sorted_uses.h"
#include "lockstep/ops/embedding.h"

namespace lockstep::kernels {
namespace {

constexpr int block = 256;

/// A pack of a row of the table; Packed divides its width.
template <int Packed, class T>
struct Gathered {
  const std::int64_t* indices;
  const float* table;
  std::int64_t rows, width;
  T* y;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t packs = width / Packed;
    const std::int64_t use = i / packs, at = i % packs * Packed, row = indices[use];
    const bool there = row >= 0 && row < rows;
    Pack<T, Packed> out;
    for (int lane = 0; lane < Packed; ++lane)
      out.lane[lane] = rounded<T>(there ? table[row * width + at + lane] : 0.0f);
    store_pack(y + use * width + at, out);
  }
};

/// Keys and values for the sort. Indices outside go last, to a row that does not exist.
struct NumberedUse {
  const std::int64_t* indices;
  std::int64_t rows;
  std::int32_t *keys, *numbers;
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t row = indices[i];
    keys[i] = static_cast<std::int32_t>(row >= 0 && row < rows ? row : rows);
    numbers[i] = static_cast<std::int32_t>(i);
  }
};

/// A block for each use that is the first of its row; a thread a column.
template <class T>
__global__ void __launch_bounds__(block)
    sum_rows(const std::int32_t* keys, const std::int32_t* numbers, std::int64_t uses, std::int64_t rows,
             std::int64_t width, const T* dy, float* dweight) {
  constexpr int at_once = 8;  // loads in flight; the additions stay in order
  for (std::int64_t first = blockIdx.x; first < uses; first += gridDim.x) {
    const std::int64_t row = keys[first];
    if (row >= rows || (first > 0 && keys[first - 1] == row)) continue;
    std::int64_t end = first + 1;
    while (end < uses && keys[end] == row) ++end;
    for (std::int64_t column = threadIdx.x; column < width; column += block) {
      float sum = dweight[row * width + column];
      std::int64_t i = first;
      for (; i + at_once <= end; i += at_once) {
        float values[at_once];
#pragma unroll
        for (int j = 0; j < at_once; ++j)
          values[j] = to_float(dy[static_cast<std::int64_t>(numbers[i + j]) * width + column]);
#pragma unroll
        for (int j = 0; j < at_once; ++j) sum += values[j];
      }
      for (; i < end; ++i) sum += to_float(dy[static_cast<std::int64_t>(numbers[i]) * width + column]);
      dweight[row * width + column] = sum;
    }
  }
}

void embedding(CudaBackend& gpu, const ops::Embedding& op) {
  const ops::TableSizes table = op.sizes();
  const Launch on = gpu.launch();
  check_data(on, op.indices, table.rows, nullptr, DataFault::index_outside, op.name, gpu.fault());
  by_type_of(op.y, [&]<class T>(T) {
    T* const to = op.y.data<T>();
    const auto gather = [&]<int packed>(Width<packed>) {
      for_elements(on, op.y.numel() / packed,
                   Gathered<packed, T>{op.indices.data<std::int64_t>(), op.weight.data<float>(), table.rows,
                                       table.width, to});
    };
    table.width % 4 == 0 && packs_at(to, 4 * sizeof(T)) ? gather(Width<4>{}) : gather(Width<1>{});
  });
}

void embedding_backward(CudaBackend& gpu, const ops::EmbeddingBackward& op) {
  const auto [rows, width, uses] = op.sizes();
  SortedUses sorted(gpu, op.name, uses, rows);
  const Launch on = gpu.launch();
  float* const dweight = op.dweight.data<float>();
  if (!op.accumulate)
    check(cudaMemsetAsync(dweight, 0, op.dweight.bytes(), on.stream), "cudaMemsetAsync", gpu.device().index);
  if (op.dy.numel() == 0) return;
  for_elements(on, uses, NumberedUse{op.indices.data<std::int64_t>(), rows, sorted.rows(), sorted.numbers()});
  sorted.sort();
  by_type_of(op.dy, [&, all = uses, of = rows, across = width]<class T>(T) {
    sum_rows<<<grid_for(all * block, block, on), block, 0, on.stream>>>(
        sorted.sorted_rows(), sorted.sorted_numbers(), all, of, across, op.dy.data<T>(), dweight);
  });
}

}  // namespace

void enter_embedding(CudaBackend& gpu) { gpu.enter<&embedding, &embedding_backward>(); }

}  // namespace lockstep::kernels
