// Pooling and upsampling of images [N, C, H, W].
#include "autograd/functions/support.h"
#include "lockstep/ops/resize.h"

namespace lockstep {
namespace {

/// Extent after windows of `kernel` have slid over `extent` places.
std::int64_t windows(const char* function, const Var& x, std::int64_t extent, std::int64_t kernel, int stride,
                     int padding) {
  if (stride < 1 || padding < 0 || kernel < 1)
    throw UsageError("{}: kernel {}, stride {} and padding {} make no window", function, kernel, stride,
                     padding);
  const std::int64_t room = extent + 2 * std::int64_t{padding} - kernel;
  if (room < 0)
    throw UsageError("{}: a window of {} with padding {} is larger than the image {}", function, kernel,
                     padding, to_string(x.shape()));
  return room / stride + 1;
}

Shape pooled(const char* function, const Var& x, const ops::PoolGeometry& pool) {
  require_rank(function, x, 4);
  const Shape& s = x.shape();
  return {s[0], s[1], windows(function, x, s[2], pool.kernel, pool.stride, pool.padding),
          windows(function, x, s[3], pool.kernel, pool.stride, pool.padding)};
}

}  // namespace

Var max_pool2d(const Var& x, const ops::PoolGeometry& geometry) {
  Tape& tape = x.tape();
  const int block = x.value().channel_block();
  const Tensor y = tape.backend().empty(pooled("max_pool2d", x, geometry), x.value().dtype(), block);
  const Tensor winners = tape.backend().empty(y.shape(), DType::int32, block);
  tape.backend().run(ops::MaxPool{x.value(), geometry, y, winners});
  return tape.record(y, {&x}, [x = x.without_value(), winners, geometry](Tape& t, const Tensor& dy) {
    give_new(t, x, [&](const Tensor& dx) {
      t.backend().run(ops::MaxPoolBackward{dy, winners, geometry, dx});
    });
  });
}

Var avg_pool2d(const Var& x, const ops::PoolGeometry& geometry) {
  Tape& tape = x.tape();
  const Tensor y =
      tape.backend().empty(pooled("avg_pool2d", x, geometry), x.value().dtype(), x.value().channel_block());
  tape.backend().run(ops::AveragePool{x.value(), geometry, y});
  return tape.record(y, {&x}, [x = x.without_value(), geometry](Tape& t, const Tensor& dy) {
    give_new(t, x, [&](const Tensor& dx) { t.backend().run(ops::AveragePoolBackward{dy, geometry, dx}); });
  });
}

Var global_avg_pool2d(const Var& x) {
  require_rank("global_avg_pool2d", x, 4);
  Tape& tape = x.tape();
  const Tensor y = tape.backend().empty({x.shape()[0], x.shape()[1], 1, 1}, x.value().dtype());
  tape.backend().run(ops::GlobalAveragePool{x.value(), y});
  return tape.record(y, {&x}, [x = x.without_value()](Tape& t, const Tensor& dy) {
    give_new(t, x, [&](const Tensor& dx) { t.backend().run(ops::GlobalAveragePoolBackward{dy, dx}); });
  });
}

Var upsample_nearest2d(const Var& x, int scale) {
  require_rank("upsample_nearest2d", x, 4);
  if (scale < 1) throw UsageError("upsample_nearest2d: a scale of {} is below 1", scale);
  Tape& tape = x.tape();
  const Shape& s = x.shape();
  const Tensor y = tape.backend().empty({s[0], s[1], s[2] * scale, s[3] * scale}, x.value().dtype(),
                                        x.value().channel_block());
  tape.backend().run(ops::UpsampleNearest{x.value(), scale, y});
  return tape.record(y, {&x}, [x = x.without_value(), scale](Tape& t, const Tensor& dy) {
    give_new(t, x, [&](const Tensor& dx) { t.backend().run(ops::UpsampleNearestBackward{dy, scale, dx}); });
  });
}

Var resize_bilinear(const Var& x, std::int64_t height, std::int64_t width) {
  require_rank("resize_bilinear", x, 4);
  const Shape& s = x.shape();
  if (height < 1 || width < 1)
    throw UsageError("resize_bilinear: images of shape {} do not become {} x {}", to_string(s), height,
                     width);
  Tape& tape = x.tape();
  const Tensor y =
      tape.backend().empty({s[0], s[1], height, width}, x.value().dtype(), x.value().channel_block());
  tape.backend().run(ops::ResizeBilinear{x.value(), y});
  return tape.record(y, {&x}, [x = x.without_value()](Tape& t, const Tensor& dy) {
    give_new(t, x, [&](const Tensor& dx) { t.backend().run(ops::ResizeBilinearBackward{dy, dx}); });
  });
}

}  // namespace lockstep
