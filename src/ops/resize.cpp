#include "lockstep/ops/resize.h"

#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

ResizeSizes resize_sizes(const char* operation, const char* x_name, const Tensor& x, const char* y_name,
                         const Tensor& y) {
  require_images(operation, x_name, x);
  require_images(operation, y_name, y);
  require_shape(operation, y_name, y, {x.size(0), x.size(1), y.size(2), y.size(3)});
  require_block(operation, y_name, y, x);
  if (x.size(2) * x.size(3) * y.size(2) * y.size(3) == 0)
    throw UsageError("{}: images of shape {} do not become ones of shape {}: no places", operation,
                     to_string(x.shape()), to_string(y.shape()));
  return {{x.size(2), y.size(2)}, {x.size(3), y.size(3)}};
}

}  // namespace

ResizeSizes ResizeBilinear::sizes() const { return resize_sizes(name, "x", x, "y", y); }
ResizeSizes ResizeBilinearBackward::sizes() const { return resize_sizes(name, "dx", dx, "dy", dy); }

}  // namespace lockstep::ops
