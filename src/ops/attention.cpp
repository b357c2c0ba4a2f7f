#include "lockstep/ops/attention.h"

#include <fmt/format.h>

#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

/// y: [batch, time, channels]
AttentionSizes attention_sizes(const char* operation, const Tensor& y, int heads, bool causal,
                               const Tensor& saved, int products) {
  if (y.shape().rank() != 3 || heads < 1 || y.size(2) % heads != 0)
    throw UsageError("{}: {} heads do not divide the channels of {} [batch, time, channels]", operation,
                     heads, to_string(y.shape()));
  const AttentionSizes sizes{y.size(0), y.size(1), heads, y.size(2) / heads, causal, products};
  const Shape logarithms{sizes.batch, heads, sizes.time};
  if (!(saved.shape() == Shape{sizes.batch, heads, sizes.time, sizes.time}))
    require_shape(operation, "saved", saved, logarithms);
  return sizes;
}

void require_heads(const char* operation, const char* name, const Columns& columns,
                   const AttentionSizes& sizes) {
  const Tensor& matrix = columns.matrix;
  if (matrix.shape().rank() == 3 && matrix.size(0) == sizes.batch && matrix.size(1) == sizes.time &&
      columns.first >= 0 && columns.count == sizes.heads * sizes.width &&
      columns.first + columns.count <= matrix.size(2))
    return;
  throw UsageError("{}: {} is columns [{}, {}) of {}, not {} columns of a matrix [{}, {}, *]", operation,
                   name, columns.first, columns.first + columns.count, to_string(matrix.shape()),
                   sizes.heads * sizes.width, sizes.batch, sizes.time);
}

double bytes_of(const Columns& columns) {
  const Tensor& m = columns.matrix;
  return static_cast<double>(m.size(0) * m.size(1) * columns.count) *
         static_cast<double>(lockstep::bytes_of(m.dtype()));
}

}  // namespace

/// Under a causal mask half of each product is needed.
double AttentionSizes::flops() const {
  const auto length = static_cast<double>(time);
  return products * 2 * static_cast<double>(batch) * length * length * static_cast<double>(heads * width) *
         (causal ? 0.5 : 1);
}
std::string AttentionSizes::text() const {
  return fmt::format("{} x {} x {}, {} heads", batch, time, heads * width, heads);
}

AttentionSizes Attention::sizes() const {
  const AttentionSizes sizes = attention_sizes(name, y, heads, causal, saved, 2);
  require_heads(name, "q", q, sizes);
  require_heads(name, "k", k, sizes);
  require_heads(name, "v", v, sizes);
  return sizes;
}
Cost Attention::cost() const {
  return {.flops = sizes().flops(),
          .bytes = bytes_of(q) + bytes_of(k) + bytes_of(v) + static_cast<double>(y.bytes() + saved.bytes())};
}

AttentionSizes AttentionBackward::sizes() const {
  require_shape(name, "y", y, dy.shape());
  const AttentionSizes sizes = attention_sizes(name, dy, heads, causal, saved, 4);
  require_heads(name, "q", q, sizes);
  require_heads(name, "k", k, sizes);
  require_heads(name, "v", v, sizes);
  require_heads(name, "dq", dq, sizes);
  require_heads(name, "dk", dk, sizes);
  require_heads(name, "dv", dv, sizes);
  return sizes;
}
Cost AttentionBackward::cost() const {
  return {.flops = sizes().flops(),
          .bytes = 2 * (bytes_of(q) + bytes_of(k) + bytes_of(v)) +
                   static_cast<double>(dy.bytes() + saved.bytes())};
}
}  // namespace lockstep::ops
