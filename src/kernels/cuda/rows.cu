// Rows repeated, and rows summed.
#include "kernels/cuda/column_sums.cuh"

namespace lockstep::kernels {
namespace {

template <int Width, class T>
__global__ void __launch_bounds__(256)
    add_row(std::int64_t rows, std::int64_t width, const T* x, const float* row, T* y) {
  const std::int64_t packs = width / Width;  // without rest where Width > 1
  for (std::int64_t r = blockIdx.y; r < rows; r += gridDim.y) {
    for (std::int64_t i = global_thread(); i < packs; i += global_threads()) {
      const std::int64_t at = i * Width;
      const Pack<T, Width> in = load_pack<T, Width>(x + r * width + at);
      Pack<T, Width> out;
      for (int lane = 0; lane < Width; ++lane)
        out.lane[lane] = rounded<T>(to_float(in.lane[lane]) + row[at + lane]);
      store_pack(y + r * width + at, out);
    }
  }
}

template <class T>
struct Element {
  const T* x;
  std::int64_t width;
  __device__ void operator()(std::int64_t row, std::int64_t column, float* totals) const {
    totals[0] += to_float(x[row * width + column]);
  }
};

}  // namespace

void launch_add_rows(const Launch& on, DType dtype, const void* x, const float* row, void* y,
                     std::int64_t rows, std::int64_t width) {
  if (rows == 0 || width == 0) return;
  with_float_type<BF16>("add_rows", dtype, [&]<class T>(T) {
    constexpr int packed = pack_width<T>;
    const bool packs = width % packed == 0 && packs_at(x) && packs_at(y);
    const std::int64_t columns = packs ? width / packed : width;
    const auto block = static_cast<unsigned>(columns < 256 ? ceil_div(columns, 32) * 32 : 256);
    const dim3 grid(static_cast<unsigned>(columns < 256 * 1024 ? ceil_div(columns, block) : 1024),
                    static_cast<unsigned>(rows < 32768 ? rows : 32768));
    const auto* from = static_cast<const T*>(x);
    auto* to = static_cast<T*>(y);
    if (packs) {
      add_row<packed><<<grid, block, 0, on.stream>>>(rows, width, from, row, to);
    } else {
      add_row<1><<<grid, block, 0, on.stream>>>(rows, width, from, row, to);
    }
  });
  check_launch("add_rows", on);
}

void launch_sum_rows(const Launch& on, DType dtype, const void* x, float* row, std::int64_t rows,
                     std::int64_t width, bool accumulate, float* partial) {
  with_float_type<BF16>("sum_rows", dtype, [&]<class T>(T) {
    sum_columns<1>("sum_rows", on, rows, width, Element<T>{static_cast<const T*>(x), width},
                   IntoGradients<1>{{row}, accumulate}, partial);
  });
}

}  // namespace lockstep::kernels
