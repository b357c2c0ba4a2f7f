// The arithmetic of cuDNN's convolutions.
#include <vector>

#include "emulated_gpu/cudnn_convolution.h"

namespace lockstep::emulated_gpu {
namespace {

using Floats = std::vector<float>;

/// Calls with the place in [n, c, h, w] order and the place in memory of every element.
template <class Call>
void for_places(const Images& images, const Call& call) {
  const auto c_count = static_cast<std::size_t>(images.c), places = static_cast<std::size_t>(images.d) *
                                                                    static_cast<std::size_t>(images.h) *
                                                                    static_cast<std::size_t>(images.w);
  std::size_t at = 0;
  for (std::size_t n = 0; n < static_cast<std::size_t>(images.n); ++n) {
    for (std::size_t c = 0; c < c_count; ++c) {
      for (std::size_t place = 0; place < places; ++place, ++at)
        call(at, images.format == CUDNN_TENSOR_NHWC ? (n * places + place) * c_count + c : at);
    }
  }
}

Floats loaded(const Images& images, const void* data) {
  Floats floats(images.count());
  const Element type = *element_of(images.type);
  for_places(images,
             [&](std::size_t at, std::size_t in_memory) { floats[at] = load(type, data, in_memory); });
  return floats;
}

void store_result(const Images& images, const Floats& floats, const ConvolutionCall& call) {
  const Element type = *element_of(images.type);
  for_places(images, [&](std::size_t at, std::size_t in_memory) {
    float value = call.alpha * floats[at];
    if (call.beta != 0.0f) value += call.beta * load(type, call.made, in_memory);
    store(type, call.made, in_memory, value);
  });
}

/// The outputs o, of `count`, whose input o * stride + offset is one of `inputs`: [first, end).
struct Overlap {
  Overlap(int offset, int stride, int inputs, int count) {
    while (first < count && first * stride + offset < 0) ++first;
    end = first;
    while (end < count && end * stride + offset < inputs) ++end;
  }
  int first = 0, end = 0;
};

/// All products of one weight with the images: row(x's element, y's element, how many), of which x continues
/// by the stride.
template <class Row>
void for_rows(const ConvolutionCall& call, int n, int c, int k, int q, int r, int s, const Row& row) {
  const ConvolutionGeometry& g = call.geometry;
  const int offset_d = q * g.dilation_d - g.padding_d, offset_h = r * g.dilation_h - g.padding_h,
            offset_w = s * g.dilation_w - g.padding_w;
  const Overlap deep(offset_d, g.stride_d, call.x.d, call.y.d),
      down(offset_h, g.stride_h, call.x.h, call.y.h), along(offset_w, g.stride_w, call.x.w, call.y.w);
  if (along.first >= along.end) return;
  for (int d = deep.first; d < deep.end; ++d) {
    for (int h = down.first; h < down.end; ++h) {
      const int x_row =
          ((n * call.x.c + c) * call.x.d + d * g.stride_d + offset_d) * call.x.h + h * g.stride_h + offset_h;
      const int y_row = ((n * call.y.c + k) * call.y.d + d) * call.y.h + h;
      row(static_cast<std::size_t>(x_row) * static_cast<std::size_t>(call.x.w) +
              static_cast<std::size_t>(along.first * g.stride_w + offset_w),
          static_cast<std::size_t>(y_row) * static_cast<std::size_t>(call.y.w) +
              static_cast<std::size_t>(along.first),
          static_cast<std::size_t>(along.end - along.first));
    }
  }
}

/// one(n, c, k, q, r, s, w's element) of all weights and images.
template <class One>
void for_weights(const ConvolutionCall& call, const One& one) {
  const int outputs = call.w.n / call.geometry.groups;
  for (int n = 0; n < call.x.n; ++n) {
    std::size_t next = 0;
    for (int k = 0; k < call.w.n; ++k) {
      for (int c = 0; c < call.w.c; ++c) {
        for (int q = 0; q < call.w.d; ++q) {
          for (int r = 0; r < call.w.h; ++r) {
            for (int s = 0; s < call.w.w; ++s, ++next) {
              const std::size_t at = call.from_last ? call.w.count() - 1 - next : next;
              if (!call.from_last) {
                one(n, k / outputs * call.w.c + c, k, q, r, s, at);
              } else {
                const int last_k = call.w.n - 1 - k;
                one(n, last_k / outputs * call.w.c + call.w.c - 1 - c, last_k, call.w.d - 1 - q,
                    call.w.h - 1 - r, call.w.w - 1 - s, at);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace

void compute(const ConvolutionCall& call) {
  const auto stride = static_cast<std::size_t>(call.geometry.stride_w);
  const bool forward = call.pass == Pass::forward, to_data = call.pass == Pass::backward_data;
  Floats x = to_data ? Floats(call.x.count()) : loaded(call.x, call.x_data);
  Floats y = forward ? Floats(call.y.count()) : loaded(call.y, call.y_data);
  Floats w = forward || to_data ? loaded(call.w, call.w_data) : Floats(call.w.count());
  for_weights(call, [&](int n, int c, int k, int q, int r, int s, std::size_t at) {
    const float weight = w[at];
    float sum = 0;
    for_rows(call, n, c, k, q, r, s, [&](std::size_t x_at, std::size_t y_at, std::size_t count) {
      float* const xs = &x[x_at];
      float* const ys = &y[y_at];
      if (forward) {
        for (std::size_t i = 0; i < count; ++i) ys[i] += xs[i * stride] * weight;
      } else if (to_data) {
        for (std::size_t i = 0; i < count; ++i) xs[i * stride] += ys[i] * weight;
      } else {
        for (std::size_t i = 0; i < count; ++i) sum += xs[i * stride] * ys[i];
      }
    });
    if (!forward && !to_data) w[at] += sum;
  });
  if (forward) return store_result(call.y, y, call);
  if (to_data) return store_result(call.x, x, call);
  store_result(call.w, w, call);
}

}  // namespace lockstep::emulated_gpu
