// Tiles, chunks of them, and the products between the transforms.
//
// A chunk of tiles is transformed, multiplied and transformed back while it is in a cache. Its products have
// whole groups of rows (gemm.h), so a tile's bits do not depend on its neighbours.
#include "kernels/cpu/winograd.h"

#include <omp.h>

#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

// The small transforms of Winograd's F(4 x 4, 3 x 3) on vectors of channels: Toom-Cook at the points 0, 5/8,
// -5/8, 3/2, -3/2 and infinity, whose rounding errors are half of those at 0, 1, -1, 2, -2 in the mean, and a
// quarter at most.
//
// With input matrix B^T [6 x 6], filter matrix G [6 x 3] and output matrix A^T [4 x 6]:
// y = A^T ((G g G^T) * (B^T d B)) A, with * element by element, correlates a 6 x 6 patch d with a 3 x 3
// kernel g.
namespace lockstep::kernels::winograd {

inline constexpr int tile = 4;                     ///< outputs a side
inline constexpr int patch = 6;                    ///< inputs a side
inline constexpr int frequencies = patch * patch;  ///< products in place of 9 * 16 multiplications
inline constexpr float a = 0.625f, b = 1.5f;       ///< the points, both signs
inline constexpr float a2 = a * a, b2 = b * b, a3 = a2 * a, b3 = b2 * b;
inline constexpr float g0 = 1 / (a2 * b2), ga = 1 / (2 * a2 * (a2 - b2)), gb = 1 / (2 * b2 * (b2 - a2));

/// v = B^T d
template <class T>
inline void input(const T* d, T* v) {
  const T d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3], d4 = d[4], d5 = d[5];
  const T even_a = d4 - b2 * d2, odd_a = a * d3 - (a * b2) * d1;
  const T even_b = d4 - a2 * d2, odd_b = b * d3 - (b * a2) * d1;
  v[0] = (a2 * b2) * d0 - (a2 + b2) * d2 + d4;
  v[1] = even_a + odd_a;
  v[2] = even_a - odd_a;
  v[3] = even_b + odd_b;
  v[4] = even_b - odd_b;
  v[5] = (a2 * b2) * d1 - (a2 + b2) * d3 + d5;
}

/// y = A^T m
template <class T>
inline void output(const T* m, T* y) {
  const T sum_a = m[1] + m[2], difference_a = m[1] - m[2];
  const T sum_b = m[3] + m[4], difference_b = m[3] - m[4];
  y[0] = m[0] + sum_a + sum_b;
  y[1] = a * difference_a + b * difference_b;
  y[2] = a2 * sum_a + b2 * sum_b;
  y[3] = a3 * difference_a + b3 * difference_b + m[5];
}

/// z = A dy
template <class T>
inline void output_gradient(const T* y, T* z) {
  const T y0 = y[0], y1 = y[1], y2 = y[2], y3 = y[3];
  const T even_a = y0 + a2 * y2, odd_a = a * y1 + a3 * y3;
  const T even_b = y0 + b2 * y2, odd_b = b * y1 + b3 * y3;
  z[0] = y0;
  z[1] = even_a + odd_a;
  z[2] = even_a - odd_a;
  z[3] = even_b + odd_b;
  z[4] = even_b - odd_b;
  z[5] = y3;
}

/// u = G w
template <class T>
inline void filter(const T* w, T* u) {
  const T w0 = w[0], w1 = w[1], w2 = w[2];
  const T even_a = ga * w0 + (ga * a2) * w2, odd_a = (ga * a) * w1;
  const T even_b = gb * w0 + (gb * b2) * w2, odd_b = (gb * b) * w1;
  u[0] = g0 * w0;
  u[1] = even_a + odd_a;
  u[2] = even_a - odd_a;
  u[3] = even_b + odd_b;
  u[4] = even_b - odd_b;
  u[5] = w2;
}

/// w = G^T u
template <class T>
inline void filter_gradient(const T* u, T* w) {
  const T sum_a = u[1] + u[2], difference_a = u[1] - u[2];
  const T sum_b = u[3] + u[4], difference_b = u[3] - u[4];
  w[0] = g0 * u[0] + ga * sum_a + gb * sum_b;
  w[1] = (ga * a) * difference_a + (gb * b) * difference_b;
  w[2] = (ga * a2) * sum_a + (gb * b2) * sum_b + u[5];
}

}  // namespace lockstep::kernels::winograd

namespace lockstep::kernels {
namespace {

using winograd::frequencies;
using winograd::patch;
using winograd::tile;

constexpr std::int64_t lanes = sizeof(Floats) / sizeof(float);
constexpr std::int64_t kernel = 3, taps = kernel * kernel;
constexpr std::int64_t row_group = 24;  // whole groups of every instruction set
constexpr std::int64_t max_chunk = 96;  // tiles: a multiple of row_group

std::int64_t tiles_over(std::int64_t extent) { return (extent + tile - 1) / tile; }

/// 36 matrices [rows, columns], one for each frequency. The distance of planes, too, is not a multiple of 1
/// KiB.
struct Planes {
  std::int64_t rows = 0, columns = 0;

  std::int64_t stride() const { return spread_stride(columns); }
  std::int64_t plane() const { return rows * stride() + 16; }
  std::int64_t floats() const { return frequencies * plane(); }
};

/// Where a tile is: its image, and its first output.
struct TilePosition {
  std::int64_t image, top, left;
};

struct Tiling {
  std::int64_t down, across;

  TilePosition at(std::int64_t index) const {
    const std::int64_t in_image = index % (down * across);
    return {index / (down * across), in_image / across * tile, in_image % across * tile};
  }
};

/// Eight channels of one image, side by side; positions are `step` floats apart.
template <class T>
struct ChannelGroup {
  T* data;
  std::int64_t height, width, step;

  T* at(std::int64_t row, std::int64_t column) const { return data + (row * width + column) * step; }
  bool contains(std::int64_t row, std::int64_t column) const {
    return row >= 0 && column >= 0 && row < height && column < width;
  }
};

/// Images in whole blocks of 8 or 16 channels.
template <class T>
struct BlockedImages {
  T* data;
  std::int64_t channels, height, width, block;

  std::int64_t groups() const { return channels / lanes; }
  ChannelGroup<T> group(std::int64_t image, std::int64_t index) const {
    const std::int64_t channel = index * lanes, blocks = channels / block;
    return {data + (image * blocks + channel / block) * block * height * width + channel % block, height,
            width, block};
  }
};

/// size x size positions from (top, left) on: in the image, or a copy with zeros outside of it.
template <int size>
class Square {
 public:
  Square(const ChannelGroup<const float>& image, std::int64_t top, std::int64_t left) {
    if (image.contains(top, left) && image.contains(top + size - 1, left + size - 1)) {
      data_ = image.at(top, left);
      row_ = image.width * image.step;
      step_ = image.step;
      return;
    }
    data_ = copy_;
    row_ = size * lanes;
    step_ = lanes;
    for (int i = 0; i < size; ++i) {
      for (int j = 0; j < size; ++j) {
        const bool inside = image.contains(top + i, left + j);
        store(copy_ + (i * size + j) * lanes, inside ? load<Floats>(image.at(top + i, left + j)) : Floats{});
      }
    }
  }
  Square(const Square&) = delete;
  Square& operator=(const Square&) = delete;

  Floats at(int row, int column) const { return load<Floats>(data_ + row * row_ + column * step_); }

 private:
  const float* data_;
  std::int64_t row_, step_;
  float copy_[size * size * lanes];  // uninitialised where the image is used
};

/// B^T d B of the patch at (top, left); frequency f at to + f * plane.
void transform_patch(const ChannelGroup<const float>& image, std::int64_t top, std::int64_t left, float* to,
                     std::int64_t plane) {
  const Square<patch> d(image, top, left);
  Floats columns[patch * patch];
  for (int j = 0; j < patch; ++j) {
    const Floats column[patch] = {d.at(0, j), d.at(1, j), d.at(2, j), d.at(3, j), d.at(4, j), d.at(5, j)};
    Floats v[patch];
    winograd::input(column, v);
    for (int i = 0; i < patch; ++i) columns[i * patch + j] = v[i];
  }
  for (int i = 0; i < patch; ++i) {
    Floats v[patch];
    winograd::input(columns + i * patch, v);
    for (int j = 0; j < patch; ++j) store(to + (i * patch + j) * plane, v[j]);
  }
}

/// A dy A^T of the tile at (top, left).
void transform_gradient(const ChannelGroup<const float>& image, std::int64_t top, std::int64_t left,
                        float* to, std::int64_t plane) {
  const Square<tile> d(image, top, left);
  Floats columns[patch * tile];
  for (int j = 0; j < tile; ++j) {
    const Floats column[tile] = {d.at(0, j), d.at(1, j), d.at(2, j), d.at(3, j)};
    Floats z[patch];
    winograd::output_gradient(column, z);
    for (int i = 0; i < patch; ++i) columns[i * tile + j] = z[i];
  }
  for (int i = 0; i < patch; ++i) {
    Floats z[patch];
    winograd::output_gradient(columns + i * tile, z);
    for (int j = 0; j < patch; ++j) store(to + (i * patch + j) * plane, z[j]);
  }
}

/// A^T m A + bias into the tile at (top, left), as far as it is inside the image.
void transform_back(const float* from, std::int64_t plane, Floats bias, const ChannelGroup<float>& image,
                    std::int64_t top, std::int64_t left) {
  Floats columns[tile * patch];
  for (int j = 0; j < patch; ++j) {
    Floats m[patch], y[tile];
    for (int i = 0; i < patch; ++i) m[i] = load<Floats>(from + (i * patch + j) * plane);
    winograd::output(m, y);
    for (int i = 0; i < tile; ++i) columns[i * patch + j] = y[i];
  }
  const std::int64_t down = std::min<std::int64_t>(tile, image.height - top),
                     across = std::min<std::int64_t>(tile, image.width - left);
  for (std::int64_t i = 0; i < down; ++i) {
    Floats y[tile];
    winograd::output(columns + i * patch, y);
    for (int j = 0; j < tile; ++j) {
      if (j < across) store(image.at(top + i, left + j), y[j] + bias);
    }
  }
}

/// A weight [O, C, 3, 3] with strides from input to output channels, or swapped for the input gradient.
struct Kernels {
  const float* weight;
  std::int64_t from_stride, to_stride;
  bool rotated;  // by 180 degrees, as an input gradient uses them

  /// Loads the kernel tap by tap, for 8 channels of the written side.
  void load(std::int64_t from, std::int64_t to, Floats* w) const {
    const float* const first = weight + from * from_stride + to * to_stride;
    for (int lane = 0; lane < lanes; ++lane) {
      for (int i = 0; i < taps; ++i) w[i][lane] = first[lane * to_stride + (rotated ? taps - 1 - i : i)];
    }
  }
};

/// Row `from` of each plane [from, to]: G g G^T.
void transform_kernels(const Kernels& kernels, std::int64_t from, const Planes& planes, float* filters) {
  for (std::int64_t to = 0; to < planes.columns; to += lanes) {
    Floats w[taps], columns[patch * kernel], u[patch];
    kernels.load(from, to, w);
    for (int j = 0; j < kernel; ++j) {
      const Floats column[kernel] = {w[j], w[kernel + j], w[2 * kernel + j]};
      winograd::filter(column, u);
      for (int i = 0; i < patch; ++i) columns[i * kernel + j] = u[i];
    }
    float* const target = filters + from * planes.stride() + to;
    for (int i = 0; i < patch; ++i) {
      winograd::filter(columns + i * kernel, u);
      for (int j = 0; j < patch; ++j) store(target + (i * patch + j) * planes.plane(), u[j]);
    }
  }
}

/// G^T du G of 8 kernels side by side in `planes`, (added) to [8, 3, 3].
void transform_kernel_gradients(const float* from, std::int64_t plane, bool accumulate, float* to) {
  Floats columns[kernel * patch], w[taps];
  for (int j = 0; j < patch; ++j) {
    Floats u[patch], column[kernel];
    for (int i = 0; i < patch; ++i) u[i] = load<Floats>(from + (i * patch + j) * plane);
    winograd::filter_gradient(u, column);
    for (int i = 0; i < kernel; ++i) columns[i * patch + j] = column[i];
  }
  for (int i = 0; i < kernel; ++i) winograd::filter_gradient(columns + i * patch, w + i * kernel);
  for (int lane = 0; lane < lanes; ++lane) {
    for (int i = 0; i < taps; ++i) {
      float& target = to[lane * taps + i];
      target = accumulate ? target + w[i][lane] : w[i][lane];
    }
  }
}

}  // namespace

bool WinogradConvolution::fits(const ConvolutionProblem& problem) {
  const ops::ConvolutionSizes& p = problem.sizes;
  const auto& [stride, padding, groups, dilation] = p.geometry;
  if (p.volumes || p.kernel_height != kernel || p.kernel_width != kernel || stride != ops::HeightWidth(1) ||
      groups != 1 || dilation != ops::HeightWidth(1))
    return false;
  if (padding.height != padding.width || padding.height >= kernel || p.in_channels % lanes != 0 ||
      p.out_channels % lanes != 0)
    return false;
  // Fewer channels are too little work for the products, and tiles far outside of the image waste transforms.
  // The rule includes both sides, so that all passes of a layer use the same algorithm.
  const auto fills_tiles = [](std::int64_t height, std::int64_t width) {
    return 10 * height * width >= 7 * tile * tile * tiles_over(height) * tiles_over(width);
  };
  return std::min(p.in_channels, p.out_channels) >= 32 && fills_tiles(p.height, p.width) &&
         fills_tiles(p.out_height, p.out_width);
}

WinogradConvolution::WinogradConvolution(const ConvolutionProblem& problem, int threads)
    : pass_(problem.pass),
      threads_(threads),
      padding_(problem.sizes.geometry.padding.height),
      x_{problem.sizes.in_channels, problem.sizes.height, problem.sizes.width, problem.x_block},
      y_{problem.sizes.out_channels, problem.sizes.out_height, problem.sizes.out_width, problem.y_block} {
  const Side& tiled = pass_ == ConvolutionPass::backward_input ? x_ : y_;
  tiles_down_ = tiles_over(tiled.height);
  tiles_across_ = tiles_over(tiled.width);
  tiles_ = problem.sizes.images * tiles_down_ * tiles_across_;
  chunk_tiles_ = std::min(max_chunk, round_up(tiles_, row_group));
  chunks_ = (tiles_ + chunk_tiles_ - 1) / chunk_tiles_;
  const std::int64_t both_sides =
      Planes{chunk_tiles_, x_.channels}.floats() + Planes{chunk_tiles_, y_.channels}.floats();
  const std::int64_t filters =
      std::max(Planes{x_.channels, y_.channels}.floats(), Planes{y_.channels, x_.channels}.floats());
  const bool shares_chunks = pass_ == ConvolutionPass::backward_weight;
  scratch_floats_ = filters + (shares_chunks ? 1 : std::min<std::int64_t>(threads_, chunks_)) * both_sides;
}

void WinogradConvolution::run(float* x, float* weight, const float* bias, float* y, bool accumulate,
                              float* scratch) const {
  omp_set_num_threads(1);  // gemm.h
  if (pass_ == ConvolutionPass::backward_weight) return weight_gradient(x, y, accumulate, weight, scratch);
  const bool forward = pass_ == ConvolutionPass::forward;
  const Side &from = forward ? x_ : y_, &to = forward ? y_ : x_;
  const std::int64_t in_stride = taps, out_stride = x_.channels * taps;
  const Kernels kernels =
      forward ? Kernels{weight, in_stride, out_stride, false} : Kernels{weight, out_stride, in_stride, true};
  const Planes filters{from.channels, to.channels};
  parallel_items(threads_, from.channels, 16,
                 [&](std::int64_t channel) { transform_kernels(kernels, channel, filters, scratch); });
  float* const work = scratch + filters.floats();
  forward ? convolve(from, x, to, y, padding_, scratch, bias, work)
          : convolve(from, y, to, x, kernel - 1 - padding_, scratch, nullptr, work);
}

void WinogradConvolution::convolve(const Side& from, const float* source, const Side& to, float* target,
                                   std::int64_t padding, const float* filters, const float* bias,
                                   float* work) const {
  const Tiling tiling{tiles_down_, tiles_across_};
  const BlockedImages<const float> read{source, from.channels, from.height, from.width, from.block};
  const BlockedImages<float> result{target, to.channels, to.height, to.width, to.block};
  const Planes in{chunk_tiles_, from.channels}, out{chunk_tiles_, to.channels},
      weights{from.channels, to.channels};
  const auto convolve_chunk = [&](std::int64_t chunk, float* patches, float* products) {
    const std::int64_t first = chunk * chunk_tiles_, tiles = std::min(chunk_tiles_, tiles_ - first);
    const std::int64_t rows = round_up(tiles, row_group);
    for (std::int64_t t = 0; t < tiles; ++t) {
      const TilePosition position = tiling.at(first + t);
      for (std::int64_t group = 0; group < read.groups(); ++group) {
        transform_patch(read.group(position.image, group), position.top - padding, position.left - padding,
                        patches + t * in.stride() + group * lanes, in.plane());
      }
    }
    for (int f = 0; f < frequencies; ++f) {
      float* const plane = patches + f * in.plane();
      std::fill(plane + tiles * in.stride(), plane + rows * in.stride(), 0.0f);
      multiply(rows, to.channels, from.channels, {plane, in.stride()},
               {filters + f * weights.plane(), weights.stride()}, 0.0f, products + f * out.plane(),
               out.stride());
    }
    for (std::int64_t t = 0; t < tiles; ++t) {
      const TilePosition position = tiling.at(first + t);
      for (std::int64_t group = 0; group < result.groups(); ++group) {
        transform_back(products + t * out.stride() + group * lanes, out.plane(),
                       bias ? load<Floats>(bias + group * lanes) : Floats{},
                       result.group(position.image, group), position.top, position.left);
      }
    }
  };
  const std::int64_t team = std::min<std::int64_t>(threads_, chunks_);
  parallel_items(threads_, team, 1, [&](std::int64_t thread) {
    float* const patches = work + thread * (in.floats() + out.floats());
    for (std::int64_t chunk = chunks_ * thread / team; chunk < chunks_ * (thread + 1) / team; ++chunk)
      convolve_chunk(chunk, patches, patches + in.floats());
  });
}

void WinogradConvolution::weight_gradient(const float* x, const float* dy, bool accumulate, float* dweight,
                                          float* scratch) const {
  const Tiling tiling{tiles_down_, tiles_across_};
  const BlockedImages<const float> inputs{x, x_.channels, x_.height, x_.width, x_.block},
      upstream{dy, y_.channels, y_.height, y_.width, y_.block};
  const Planes in{chunk_tiles_, x_.channels}, out{chunk_tiles_, y_.channels},
      weights{y_.channels, x_.channels};
  float *const patches = scratch, *const gradients = patches + in.floats(),
               *const sums = gradients + out.floats();
  const std::int64_t tiles_per_thread = 8;
  for (std::int64_t first = 0; first < tiles_; first += chunk_tiles_) {
    const std::int64_t tiles = std::min(chunk_tiles_, tiles_ - first);
    parallel_items(threads_, tiles, tiles_per_thread, [&](std::int64_t t) {
      const TilePosition position = tiling.at(first + t);
      for (std::int64_t group = 0; group < inputs.groups(); ++group) {
        transform_patch(inputs.group(position.image, group), position.top - padding_,
                        position.left - padding_, patches + t * in.stride() + group * lanes, in.plane());
      }
      for (std::int64_t group = 0; group < upstream.groups(); ++group) {
        transform_gradient(upstream.group(position.image, group), position.top, position.left,
                           gradients + t * out.stride() + group * lanes, out.plane());
      }
    });
    // A frequency belongs to one thread, whose order of sums is fixed.
    parallel_items(threads_, frequencies, 1, [&](std::int64_t f) {
      multiply(y_.channels, x_.channels, tiles, {gradients + f * out.plane(), out.stride(), true},
               {patches + f * in.plane(), in.stride()}, first == 0 ? 0.0f : 1.0f, sums + f * weights.plane(),
               weights.stride());
    });
  }
  parallel_items(threads_, y_.channels, 8, [&](std::int64_t o) {
    for (std::int64_t c = 0; c < x_.channels; c += lanes) {
      transform_kernel_gradients(sums + o * weights.stride() + c, weights.plane(), accumulate,
                                 dweight + (o * x_.channels + c) * taps);
    }
  });
}

}  // namespace lockstep::kernels
