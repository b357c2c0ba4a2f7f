#include "lockstep/ops/attention.h"

#include <fmt/format.h>

#include "lockstep/ops/check.h"

namespace lockstep::ops {
namespace {

bool is_matrix_of_heads(const Columns& columns) {
  const Tensor& matrix = columns.matrix;
  return (matrix.shape().rank() == 3 || matrix.shape().rank() == 4) && columns.first >= 0 &&
         columns.count >= 0 && columns.first + columns.count <= matrix.size(-1);
}

bool has_heads_apart(const Columns& columns) { return columns.matrix.shape().rank() == 4; }

std::int64_t time_of(const Columns& columns) { return columns.matrix.size(-2); }

/// The number of heads of this width; 0 if the columns do not divide into such heads. Without columns, heads
/// of width 0 have any number: `heads`.
std::int64_t heads_of(const Columns& columns, std::int64_t width, std::int64_t heads) {
  if (!is_matrix_of_heads(columns)) return 0;
  if (has_heads_apart(columns)) return columns.count == width ? columns.matrix.size(1) : 0;
  if (width == 0) return columns.count == 0 ? heads : 0;
  const std::int64_t number = columns.count / width, step = columns.head_step;
  const bool fit =
      step == 0 || (step >= width && columns.first + (number - 1) * step + width <= columns.matrix.size(-1));
  return fit && columns.count % width == 0 ? number : 0;
}

std::string text_of(const Columns& columns) {
  if (columns.first == 0 && columns.count == all_columns(columns.matrix).count)
    return to_string(columns.matrix.shape());
  return fmt::format("columns [{}, {}) of {}", columns.first, columns.first + columns.count,
                     to_string(columns.matrix.shape()));
}

/// UsageError unless the columns have these sequences, rows and heads.
void require_heads(const char* operation, const char* name, const Columns& columns, std::int64_t batch,
                   std::int64_t time, std::int64_t heads, std::int64_t width) {
  if (heads_of(columns, width, heads) == heads && columns.matrix.size(0) == batch && time_of(columns) == time)
    return;
  throw UsageError("{}: {} is {}, not {} heads of width {} for {} sequences of {} rows", operation, name,
                   text_of(columns), heads, width, batch, time);
}

void require_saved(const char* operation, const Tensor& saved, const AttentionSizes& sizes) {
  if (!(saved.shape() == Shape{sizes.batch, sizes.heads, sizes.queries, sizes.keys}))
    require_shape(operation, "saved", saved, {sizes.batch, sizes.heads, sizes.queries});
}

void require_positions(const char* operation, const Tensor& positions, const AttentionSizes& sizes) {
  if (!positions) return;
  if (!sizes.causal) throw UsageError("{}: positions need a causal mask", operation);
  require_shape(operation, "positions", positions, {sizes.batch, sizes.queries});
}

void require_bias(const char* operation, const Tensor& bias, const AttentionSizes& sizes) {
  if (!bias) return;
  const Shape whole{sizes.batch, sizes.heads, sizes.queries, sizes.keys};
  if (bias.shape().rank() != 4 || bias.size(3) != sizes.keys || !broadcasts_to(bias.shape(), whole))
    throw UsageError("{}: a bias of shape {} does not fit scores of shape {}", operation,
                     to_string(bias.shape()), to_string(whole));
}

double bytes_of(const Columns& columns) {
  return static_cast<double>(columns.count) * static_cast<double>(row_count(columns.matrix.shape())) *
         static_cast<double>(lockstep::bytes_of(columns.matrix.dtype()));
}

}  // namespace

HeadStrides head_strides(const Columns& columns, std::int64_t width) {
  const Tensor& matrix = columns.matrix;
  const std::int64_t row = matrix.size(-1), of_time = time_of(columns) * row;
  if (has_heads_apart(columns)) return {matrix.size(1) * of_time, of_time, row};
  return {of_time, columns.head_step == 0 ? width : columns.head_step, row};
}

/// A causal mask needs half of each product.
double AttentionSizes::flops() const {
  return products * 2 * static_cast<double>(batch) * static_cast<double>(queries) *
         static_cast<double>(keys) * static_cast<double>(heads * width) * (causal ? 0.5 : 1);
}
std::string AttentionSizes::text() const {
  std::string text = fmt::format("{} x {} x {}, {} heads", batch, queries, heads * width, heads);
  if (key_heads != heads) text += fmt::format(" of {}", key_heads);
  if (keys != queries) text += fmt::format(", {} keys", keys);
  return text;
}

AttentionSizes attention_sizes(const char* operation, const Columns& q, const Columns& k, const Columns& v,
                               int heads, bool causal, int products, std::int64_t keys) {
  if (!is_matrix_of_heads(q) || (!has_heads_apart(q) && (heads < 1 || q.count % heads != 0)))
    throw UsageError(
        "{}: q is {}, neither {} heads side by side in [batch, time, channels] nor [batch, heads, "
        "time, width]",
        operation, text_of(q), heads);
  const std::int64_t width = has_heads_apart(q) ? q.count : q.count / heads,
                     query_heads = has_heads_apart(q) ? q.matrix.size(1) : heads;
  const std::int64_t key_heads = heads_of(k, width, query_heads);
  if (key_heads < 1 || query_heads % key_heads != 0 || k.matrix.size(0) != q.matrix.size(0))
    throw UsageError("{}: k, {}, does not fit q, {}: {} heads of width {}", operation, text_of(k), text_of(q),
                     query_heads, width);
  if (keys < 0 || keys > time_of(k))
    throw UsageError("{}: k, {}, does not have {} rows", operation, text_of(k), keys);
  const AttentionSizes sizes{q.matrix.size(0), time_of(q), keys > 0 ? keys : time_of(k),
                             query_heads,      key_heads,  width,
                             causal,           products};
  require_heads(operation, "q", q, sizes.batch, sizes.queries, query_heads, width);
  require_heads(operation, "v", v, sizes.batch, time_of(k), key_heads, width);
  if (causal && sizes.queries > sizes.keys)
    throw UsageError(
        "{}: a causal mask needs at least as many keys as queries, not {} for {} (q is {}, k is {})",
        operation, sizes.keys, sizes.queries, text_of(q), text_of(k));
  if ((sizes.keys == 0) != (sizes.queries == 0))
    throw UsageError("{}: {} queries cannot attend to {} keys (q is {}, k is {})", operation, sizes.queries,
                     sizes.keys, text_of(q), text_of(k));
  return sizes;
}

AttentionSizes Attention::sizes() const {
  const AttentionSizes s = attention_sizes(name, q, k, v, heads, causal, 2, keys);
  require_positions(name, positions, s);
  require_bias(name, bias, s);
  require_heads(name, "y", all_columns(y), s.batch, s.queries, s.heads, s.width);
  if (saved) require_saved(name, saved, s);
  return s;
}
Cost Attention::cost() const {
  return {.flops = sizes().flops(),
          .bytes = bytes_of(q) + bytes_of(k) + bytes_of(v) +
                   static_cast<double>(y.bytes() + (saved ? saved.bytes() : 0))};
}

AttentionSizes AttentionBackward::sizes() const {
  const AttentionSizes s = attention_sizes(name, q, k, v, heads, causal, 4);
  require_positions(name, positions, s);
  require_bias(name, bias, s);
  if (dbias) require_shape(name, "dbias", dbias, {s.batch, s.heads, s.queries, s.keys});
  require_heads(name, "dy", all_columns(dy), s.batch, s.queries, s.heads, s.width);
  require_heads(name, "y", all_columns(y), s.batch, s.queries, s.heads, s.width);
  require_saved(name, saved, s);
  require_heads(name, "dq", dq, s.batch, s.queries, s.heads, s.width);
  require_heads(name, "dk", dk, s.batch, s.keys, s.key_heads, s.width);
  require_heads(name, "dv", dv, s.batch, s.keys, s.key_heads, s.width);
  return s;
}
Cost AttentionBackward::cost() const {
  return {.flops = sizes().flops(),
          .bytes = 2 * (bytes_of(q) + bytes_of(k) + bytes_of(v)) +
                   static_cast<double>(dy.bytes() + saved.bytes())};
}

void Rotary::check() const {
  if (x.shape().rank() != 4 || x.size(3) % 2 != 0)
    throw UsageError("{}: x has shape {}, not [batch, {}, width] with an even width", name,
                     to_string(x.shape()), time_first ? "time, heads" : "heads, time");
  if (!(base > 0)) throw UsageError("{}: the base is {}; it must be positive", name, base);
  require_shape(name, "y", y, x.shape());
  if (positions) require_shape(name, "positions", positions, {x.size(0), time()});
}

}  // namespace lockstep::ops
