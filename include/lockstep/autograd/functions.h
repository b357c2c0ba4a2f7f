// The differentiable functions. Each computes on the backend of its inputs' tape and records its backward
// there.
//
// Shapes are PyTorch's: images [N, C, H, W], linear weights [out, in], convolution weights [O, C / groups,
// kh, kw]; volumes have a depth, too: [N, C, D, H, W] and [O, C / groups, kd, kh, kw]. Wrong shapes throw
// UsageError naming the function. A Var without a tape (Var{}) stands for an absent bias. Images may be in
// channel blocks (tensor.h): conv2d converts to them, and functions that need plain rows convert back.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "lockstep/autograd/loss.h"
#include "lockstep/autograd/tape.h"
#include "lockstep/ops/attention.h"
#include "lockstep/ops/convolution.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/ops/pooling.h"

namespace lockstep {

/// Axes of a shape; negative axes count from the last. Empty: all axes.
class Axes {
 public:
  Axes() = default;
  /// One axis.
  Axes(int axis) : Axes({axis}) {}  // NOLINT: sum(x, -1)
  Axes(bool) = delete;              // sum(x, true) meant sum(x, {}, true)
  /// Several axes; empty: all axes.
  Axes(std::initializer_list<int> axes) {
    for (const int axis : axes) add(axis);
  }
  /// UsageError if there are more axes than a shape can have.
  void add(int axis);
  const int* begin() const noexcept { return axes_.data(); }
  const int* end() const noexcept { return axes_.data() + count_; }

 private:
  std::array<int, Shape::max_rank> axes_{};
  int count_ = 0;
};

// --- elementwise
// Functions of two inputs, broadcast by NumPy's rules. The result is bf16 if an input is. If the shapes are
// equal, images keep a's channel blocks; otherwise they become plain.
Var add(const Var& a, const Var& b);
Var sub(const Var& a, const Var& b);
Var mul(const Var& a, const Var& b);
Var div(const Var& a, const Var& b);
Var swiglu(const Var& gate, const Var& up);  ///< silu(gate) up, the gated activation of Llama's layers
/// Each input gets half of the gradient where both are equal.
Var maximum(const Var& a, const Var& b);
Var minimum(const Var& a, const Var& b);
/// a where the condition (int64 or uint8) is not 0, else b.
Var where(const Tensor& condition, const Var& a, const Var& b);
Var where(const Tensor& condition, const Var& a, float b);
Var where(const Tensor& condition, float a, const Var& b);
Var scale(const Var& x, float factor);
Var add(const Var& x, float value);
inline Var add(float value, const Var& x) { return add(x, value); }
inline Var sub(const Var& x, float value) { return add(x, -value); }
Var sub(float value, const Var& x);
inline Var mul(const Var& x, float factor) { return scale(x, factor); }
inline Var mul(float factor, const Var& x) { return scale(x, factor); }
/// x times the reciprocal of the divisor, rounded.
inline Var div(const Var& x, float divisor) { return scale(x, 1.0f / divisor); }
Var div(float value, const Var& x);
Var maximum(const Var& x, float value);  ///< x gets the whole gradient where both are equal
Var minimum(const Var& x, float value);

inline Var operator+(const Var& a, const Var& b) { return add(a, b); }
inline Var operator-(const Var& a, const Var& b) { return sub(a, b); }
inline Var operator*(const Var& a, const Var& b) { return mul(a, b); }
inline Var operator/(const Var& a, const Var& b) { return div(a, b); }
inline Var operator+(const Var& a, float b) { return add(a, b); }
inline Var operator-(const Var& a, float b) { return sub(a, b); }
inline Var operator*(const Var& a, float b) { return mul(a, b); }
inline Var operator/(const Var& a, float b) { return div(a, b); }
inline Var operator+(float a, const Var& b) { return add(a, b); }
inline Var operator-(float a, const Var& b) { return sub(a, b); }
inline Var operator*(float a, const Var& b) { return mul(a, b); }
inline Var operator/(float a, const Var& b) { return div(a, b); }
inline Var operator-(const Var& x) { return scale(x, -1.0f); }

// Functions of one input.
/// function.value(x) of each element: any function of ops/formulas.h.
template <class Function>
Var elementwise(const Var& x, const Function& function = {});
inline Var relu(const Var& x) { return elementwise<ops::Relu>(x); }
inline Var silu(const Var& x) { return elementwise<ops::Silu>(x); }
/// x Phi(x), by the error function.
inline Var gelu_erf(const Var& x) { return elementwise<ops::GeluErf>(x); }
/// The approximation of gelu_erf by tanh (GPT-2).
inline Var gelu_tanh(const Var& x) { return elementwise<ops::GeluTanh>(x); }
inline Var tanh(const Var& x) { return elementwise<ops::Tanh>(x); }
inline Var sigmoid(const Var& x) { return elementwise<ops::Sigmoid>(x); }
inline Var neg(const Var& x) { return -x; }
inline Var exp(const Var& x) { return elementwise<ops::Exp>(x); }
inline Var log(const Var& x) { return elementwise<ops::Log>(x); }  ///< -infinity at 0, NaN below
inline Var sqrt(const Var& x) { return elementwise<ops::Sqrt>(x); }
inline Var rsqrt(const Var& x) { return elementwise<ops::Rsqrt>(x); }  ///< 1 / sqrt(x)
inline Var reciprocal(const Var& x) { return elementwise<ops::Reciprocal>(x); }
inline Var abs(const Var& x) { return elementwise<ops::Abs>(x); }
inline Var square(const Var& x) { return elementwise<ops::Square>(x); }
inline Var sin(const Var& x) { return elementwise<ops::Sin>(x); }
inline Var cos(const Var& x) { return elementwise<ops::Cos>(x); }
inline Var erf(const Var& x) { return elementwise<ops::Erf>(x); }
inline Var softplus(const Var& x) { return elementwise<ops::Softplus>(x); }       ///< log(1 + e^x)
inline Var log_sigmoid(const Var& x) { return elementwise<ops::LogSigmoid>(x); }  ///< log(sigmoid(x))
inline Var mish(const Var& x) { return elementwise<ops::Mish>(x); }               ///< x tanh(softplus(x))
inline Var hardswish(const Var& x) { return elementwise<ops::Hardswish>(x); }  ///< x clamp(x + 3, 0, 6) / 6
/// x below 0 becomes alpha (e^x - 1).
inline Var elu(const Var& x, float alpha = 1) { return elementwise<ops::Elu>(x, {alpha}); }
/// x below 0 becomes slope x.
inline Var leaky_relu(const Var& x, float slope = 0.01f) { return elementwise<ops::LeakyRelu>(x, {slope}); }
/// x^exponent; NaN where x < 0 unless the exponent is whole.
inline Var pow(const Var& x, float exponent) { return elementwise<ops::Pow>(x, {exponent}); }
/// min(max(x, low), high); low <= high. The gradient is 0 outside.
Var clamp(const Var& x, float low, float high);
/// In training, zeroes elements with probability 0 <= p < 1 and scales the rest by 1 / (1 - p). Draws are
/// keyed by the pass and `purpose`: two calls of one pass need different purposes. Returns x in evaluations.
Var dropout(const Var& x, float p, std::uint64_t purpose);

// --- shape and layout
/// x in channel blocks of `channel_block` (1: plain); x itself if it is already.
Var to_channel_block(const Var& x, int channel_block);
/// The same values as float32: losses are not computed in bf16.
Var to_float32(const Var& x);
/// The same elements in another shape.
Var reshape(const Var& x, Shape shape);
/// Folds all dimensions from `first` on into one.
Var flatten(const Var& x, int first);
/// Images [N, C, H, W] or volumes as sequences of their positions, [N, H W, C].
Var to_sequence(const Var& x);
/// The inverse; size: {height, width} or {depth, height, width}. The images are in channel blocks of all C
/// channels, so that no element moves.
Var from_sequence(const Var& x, std::span<const std::int64_t> size);
inline Var from_sequence(const Var& x, std::int64_t height, std::int64_t width) {
  return from_sequence(x, std::array{height, width});
}

/// Joins the parts along an axis; the other extents and the types must be equal. Images joined along their
/// channels keep their channel blocks if all have the same full blocks.
Var concat(std::span<const Var> parts, int axis);
inline Var concat(std::initializer_list<Var> parts, int axis) {
  return concat(std::span<const Var>(parts.begin(), parts.size()), axis);
}
// The results of the functions below are plain.
/// Joins the parts along a new axis; all shapes must be equal.
Var stack(std::span<const Var> parts, int axis);
inline Var stack(std::initializer_list<Var> parts, int axis) {
  return stack(std::span<const Var>(parts.begin(), parts.size()), axis);
}
/// Positions [start, start + length) of an axis.
Var narrow(const Var& x, int axis, std::int64_t start, std::int64_t length);
/// Cuts an axis into parts.size() equal parts. UsageError if that does not divide its extent.
void chunk(const Var& x, int axis, std::span<Var> parts);
template <std::size_t count>
std::array<Var, count> chunk(const Var& x, int axis) {
  std::array<Var, count> parts;
  chunk(x, axis, parts);
  return parts;
}
/// Dimension d of the result is dimension order[d] of x; `order` names each axis once.
Var permute(const Var& x, std::span<const int> order);
inline Var permute(const Var& x, std::initializer_list<int> order) {
  return permute(x, std::span<const int>(order.begin(), order.size()));
}
/// Swaps two axes.
Var transpose(const Var& x, int a, int b);
/// Repeated to a shape that x broadcasts to by NumPy's rules.
Var expand(const Var& x, const Shape& shape);
/// Reverses the axes; empty: all axes.
Var flip(const Var& x, const Axes& axes);
/// index_select: the positions of an axis that int64 indices [n] name. gather: indices of x's shape except
/// along the axis, one for each element of the result. DataError if an index is out of range.
Var index_select(const Var& x, int axis, const Tensor& indices);
Var gather(const Var& x, int axis, const Tensor& indices);
/// The padding before and after an axis.
struct Pad {
  std::int64_t before = 0, after = 0;  ///< elements added at the beginning and at the end
};
/// pads: those of the first dimensions; `value` fills the padding.
Var pad(const Var& x, std::span<const Pad> pads, float value = 0);
inline Var pad(const Var& x, std::initializer_list<Pad> pads, float value = 0) {
  return pad(x, std::span<const Pad>(pads.begin(), pads.size()), value);
}

// --- reductions
// Over the axes, which the result lacks, or has with extent 1 if `keep`. UsageError for an axis that is out
// of range or named twice.
Var sum(const Var& x, const Axes& axes = {}, bool keep = false);
Var mean(const Var& x, const Axes& axes = {}, bool keep = false);
/// The mean of the squared distances from the mean.
Var variance(const Var& x, const Axes& axes = {}, bool keep = false);
/// The largest and the smallest element. Equal ones share the gradient evenly. UsageError for an empty axis.
Var amax(const Var& x, const Axes& axes = {}, bool keep = false);
Var amin(const Var& x, const Axes& axes = {}, bool keep = false);
/// log(sum(exp(x))), without overflow.
Var logsumexp(const Var& x, const Axes& axes = {}, bool keep = false);
/// exp(x) / sum(exp(x)) along an axis, and its logarithm.
Var softmax(const Var& x, int axis = -1);
Var log_softmax(const Var& x, int axis = -1);
/// The sum of the elements up to each position of an axis.
Var cumsum(const Var& x, int axis);

// --- segments: rows that belong together, like the edges of a node or the nodes of a graph
// x: [rows, ...]; indices: int64 [rows], the segment of each row in [0, segments), sorted or not. Results
// have the shape [segments, ...] and are 0 for a segment without rows. Rows are added in their order, so that
// the bits are the same at any number of threads. DataError if an index is out of range.
Var segment_sum(const Var& x, const Tensor& indices, std::int64_t segments);
Var segment_mean(const Var& x, const Tensor& indices, std::int64_t segments);
/// The largest element of each column. Equal ones share the gradient evenly.
Var segment_max(const Var& x, const Tensor& indices, std::int64_t segments);
/// exp(x) / sum(exp(x)) of each column over the rows of a segment; result [rows, ...], as x.
Var segment_softmax(const Var& x, const Tensor& indices, std::int64_t segments);

// --- products
/// [..., m, k] by [..., k, n]: one product for each index of the dimensions before, which broadcast by
/// NumPy's rules; result [..., m, n].
Var matmul(const Var& a, const Var& b);
/// x: [..., in]; weight: [out, in]; bias: [out] or absent; result [..., out].
Var linear(const Var& x, const Var& weight, const Var& bias = {});
/// activation(linear(x, weight, bias)), and feed_forward(x) = linear(activation(linear(x, weight_in,
/// bias_in)), weight_out, bias_out): the activation and its slope are fused into the products. The CPU gives
/// the same bits as the separate functions.
Var linear(const Var& x, const Var& weight, const Var& bias, ops::Activation activation);
Var feed_forward(const Var& x, const Var& weight_in, const Var& bias_in, ops::Activation activation,
                 const Var& weight_out, const Var& bias_out);

// --- images and volumes
/// residual: of the result's shape; it is added where it is given, and a GPU rounds once.
Var conv2d(const Var& x, const Var& weight, const Var& bias = {},
           const ops::ConvolutionGeometry& geometry = {}, const Var& residual = {});
/// x: [N, C, L]; weight: [O, C / groups, k]; result [N, O, L']. Only the widths of the geometry count.
Var conv1d(const Var& x, const Var& weight, const Var& bias = {},
           const ops::ConvolutionGeometry& geometry = {});
/// The gradient of conv2d by its input, as a function of x: [N, C, H, W]. weight: [C, O / groups, kh, kw];
/// result [N, O, H', W'] with H' = (H - 1) stride - 2 padding + dilation (kh - 1) + 1 + output_padding, which
/// is less than the stride.
Var conv_transpose2d(const Var& x, const Var& weight, const Var& bias = {},
                     const ops::ConvolutionGeometry& geometry = {},
                     const ops::Directions& output_padding = 0);
/// The same of volumes; numbers of a geometry are for all directions, or {depth, height, width}.
Var conv3d(const Var& x, const Var& weight, const Var& bias = {},
           const ops::ConvolutionGeometry& geometry = {}, const Var& residual = {});
Var conv_transpose3d(const Var& x, const Var& weight, const Var& bias = {},
                     const ops::ConvolutionGeometry& geometry = {},
                     const ops::Directions& output_padding = 0);
Var max_pool2d(const Var& x, const ops::PoolGeometry& geometry);
Var max_pool3d(const Var& x, const ops::PoolGeometry& geometry);
/// The padding counts as zeros in the mean.
Var avg_pool2d(const Var& x, const ops::PoolGeometry& geometry);
Var avg_pool3d(const Var& x, const ops::PoolGeometry& geometry);
/// [N, C, H, W] -> [N, C, 1, 1], plain.
Var global_avg_pool2d(const Var& x);
/// Means over as many windows as `size` says, {height, width} or {depth, height, width}: window i of n is
/// [floor(i H / n), ceil((i + 1) H / n)).
Var adaptive_avg_pool(const Var& x, std::span<const std::int64_t> size);
inline Var adaptive_avg_pool(const Var& x, std::initializer_list<std::int64_t> size) {
  return adaptive_avg_pool(x, std::span<const std::int64_t>(size.begin(), size.size()));
}
Var upsample_nearest2d(const Var& x, int scale);
Var upsample_nearest3d(const Var& x, int scale);
/// Half-pixel centres, without antialiasing.
Var resize_bilinear(const Var& x, std::int64_t height, std::int64_t width);
Var resize_trilinear(const Var& x, std::int64_t depth, std::int64_t height, std::int64_t width);

// --- sequences
/// indices: int64, any shape; weight: [rows, width]; result [indices..., width].
Var embedding(const Tensor& indices, const Var& weight);

// Functions of a sequence's positions take `positions`, int64 [B, T], if they do not count from 0 in every
// row of the batch: documents that follow each other in a row, or a row's end (ops/attention.h).

/// x: [B, T, C]; weight: [context, C], of which rows [0, T), or `positions`, are added to every sequence.
Var add_positions(const Var& x, const Var& weight, const Tensor& positions = {});
using ops::RotaryLayout;
/// How rotary() turns.
struct RotaryOptions {
  RotaryLayout layout = RotaryLayout::halves;  ///< which elements are a pair
  float base = 10000;                          ///< pair i turns by base^(-2 i / width) a position
  std::int64_t first_position = 0;             ///< of row 0, without `positions`
  ops::RotaryScaling scaling = {};             ///< for longer texts
  bool time_first = false;                     ///< x is [B, T, heads, width]
  Tensor positions = {};                       ///< instead of first_position, first_position + 1 ...
};
/// Rotary positions. x: [B, heads, T, width], width even. Pair i of the row of position p is rotated by the
/// angle p base^(-2 i / width).
Var rotary(const Var& x, const RotaryOptions& options);
/// The same, of the options that most need.
inline Var rotary(const Var& x, RotaryLayout layout, float base = 10000, std::int64_t first_position = 0) {
  return rotary(x, {.layout = layout, .base = base, .first_position = first_position});
}
/// What is added to the scores of an attention. With a bias or a mask a GPU uses Lockstep's own kernels,
/// which are slower than cuDNN's in bf16; and a pass with a cache refuses it.
struct AttentionBias {
  /// Added to q k' / sqrt(width): [B, H, Tq, Tk] or [H, Tq, Tk], or extent 1 in place of B, H or Tq. If it
  /// needs a gradient, the backward takes B H Tq Tk float32.
  Var bias = {};
  /// int64 or float32 [B, Tk]: keys of 0 are not seen. A row that sees no key attends to all of them.
  Tensor key_mask = {};
};
/// softmax(q k' / sqrt(width)) v per head; result as q. With `causal`, which needs as many keys as queries, a
/// position attends to itself and to the positions before it (of its document, if there are `positions`); in
/// a pass with a cache also to those of the cache. k and v may have another length than q, and fewer heads
/// (grouped queries): of H query heads and K key heads, H / K query heads share a key head. q: [B, Tq, H W],
/// k, v: [B, Tk, K W], with the heads side by side; heads: H.
Var attention(const Var& q, const Var& k, const Var& v, int heads, bool causal, const Tensor& positions = {},
              const AttentionBias& bias = {});
/// q: [B, H, Tq, W], k, v: [B, K, Tk, W].
Var attention(const Var& q, const Var& k, const Var& v, bool causal, const Tensor& positions = {},
              const AttentionBias& bias = {});
/// How the columns of q, k and v share a matrix.
enum class HeadOrder : std::uint8_t {
  thirds,  ///< [3, heads, W]: all of q, all of k, all of v
  heads,   ///< [heads, 3, W]: q, k and v of one head, then of the next
};
/// qkv: [B, T, 3 C], the output of one linear layer.
Var attention(const Var& qkv, int heads, bool causal, HeadOrder order = HeadOrder::thirds,
              const Tensor& positions = {}, const AttentionBias& bias = {});

// Sequences of different lengths are padded to [N, T, ...], and lengths, int64 [N], say how many of the T
// steps of each count. DataError if one is outside [0, T].

/// x: [N, T, ...]; result as x, but 0, or `value`, in the steps that do not count, which may hold anything.
Var keep_steps(const Var& x, const Tensor& lengths);
Tensor keep_steps(Tape& tape, const Tensor& x, const Tensor& lengths, double value = 0);
/// float32 [N, steps]: 1 for steps that count, 0 for others; a key mask of attention.
Tensor length_mask(Tape& tape, const Tensor& lengths, std::int64_t steps);
/// x: [N, T, ...]; result [N, ...], the mean over the steps that count; 0 if none does. Other steps may hold
/// anything.
Var mean_over_lengths(const Var& x, const Tensor& lengths);
/// The same of the last step that counts.
Var last_of_lengths(const Var& x, const Tensor& lengths);

/// A layer of a recurrent network, from a state of zeros. from_x: [T, N, gates H], x weight_ih' + bias_ih of
/// all steps (of one shard after another, if a pass has several); weight, bias: PyTorch's weight_hh [gates H,
/// H] and bias_hh, absent or [gates H]. 3 gates r, z, n: a GRU; 4 gates i, f, g, o: an LSTM. Result [T, N,
/// H].
Var recurrent(const Var& from_x, const Var& weight, const Var& bias = {});

// --- normalisation
/// Over the last dimension n; weight, bias: [n].
Var layer_norm(const Var& x, const Var& weight, const Var& bias, float eps);
/// sum = a + b and layer_norm(sum), in one pass over memory: the residual stream and the input of the next
/// branch.
struct SumAndNorm {
  Var sum, norm;  ///< a + b; its norm
};
SumAndNorm add_layer_norm(const Var& a, const Var& b, const Var& weight, const Var& bias, float eps);
/// weight x / sqrt(mean of x^2 + eps) over the last dimension n; weight: [n].
Var rms_norm(const Var& x, const Var& weight, float eps);
/// x: [N, C, H, W] or [N, C, D, H, W]; weight, bias: [C].
Var group_norm(const Var& x, int groups, const Var& weight, const Var& bias, float eps);
/// The inputs of a group norm that depend on the image, and the activation after it (Dhariwal, Nichol, 2021).
struct AdaptiveNorm {
  Var addend = {};       ///< [N, C], added to the channels of x first; may be absent
  Var scale_shift = {};  ///< [N, 2 C], the scales of the channels, then the shifts; may be absent
  bool silu = false;     ///< whether SiLU follows
  float dropout = 0;     ///< the p of the dropout() that follows; 0: none
  std::uint64_t dropout_purpose = 0;  ///< that of dropout()
};
/// z (1 + scale) + shift with z = group_norm(x + addend), and the SiLU and the dropout of that, in one
/// operation. Images keep their channel blocks.
Var adaptive_group_norm(const Var& x, int groups, const Var& weight, const Var& bias, float eps,
                        const AdaptiveNorm& how);

/// How batch_norm() computes.
struct BatchNormOptions {
  float eps = 1e-5f;  ///< added to the variance
  /// float32 [C]: the statistics of evaluations; the mean is also the centre of the moments.
  Tensor running_mean, running_var;
  /// The ranks of the pass share their statistics; null: each shard has its own.
  comm::GradientTransport* transport = nullptr;
  /// Receives this shard's moments in a recorded training pass: float64 [2 C + 1], per channel the sum of
  /// (x - running_mean), then per channel the sum of its squares, then the number of elements a channel has.
  Statistic* statistic = nullptr;
  bool frozen = false;  ///< training passes normalise as evaluations do, and contribute nothing
};
/// x: [N, C, H, W], [N, C, D, H, W] or [N, C]; weight, bias: [C]. Training passes normalise by the batch's
/// mean and biased variance, evaluations by the running ones. Only recorded training passes communicate;
/// gradients of weight and bias are this rank's share. UsageError if a training pass of step 0 has one value
/// per channel on this rank, or on all ranks that share statistics.
Var batch_norm(const Var& x, const Var& weight, const Var& bias, const BatchNormOptions& options);
/// relu(batch_norm(x) + shortcut) in fewer passes over memory: in float32 the same values on the CPU, in bf16
/// rounded once instead of three times. shortcut: of x's shape, or absent.
Var batch_norm_relu(const Var& x, const Var& weight, const Var& bias, const Var& shortcut,
                    const BatchNormOptions& options);

// --- losses
/// logits: [..., classes]; targets: int64, one per row. The count is that of targets that are not ignored.
/// Logits without another handle (a model's result as it is returned, or std::move) become their gradient at
/// once, in one pass.
Loss cross_entropy(Var logits, const Tensor& targets, const ops::CrossEntropyOptions& options = {});
/// cross_entropy(linear(x, weight, {}), targets, options) as one operation, for many classes: if their number
/// makes products slow (Backend::fast_columns), the logits have more columns, which do not count.
Loss linear_cross_entropy(const Var& x, const Var& weight, const Tensor& targets,
                          const ops::CrossEntropyOptions& options = {});
/// Inputs and outputs of the losses below for each sample; samples are the first dimension of x [N, ...].
struct PerSample {
  Tensor weights = {};       ///< float32 [N], factors of the samples' losses; absent: 1. The count stays
  Tensor* values = nullptr;  ///< receives float32 [N]: the mean loss of each sample's elements, not weighted
  /// int64 [N]: how many steps of each sample of x [N, T, ...] count, in the sum and in the count; other
  /// steps may hold anything, also in the target. Not with `values`.
  Tensor lengths = {};
};
// Sums over the elements of x and a target of its shape; the count is the number of elements.
/// (x - target)^2
Loss mse(const Var& x, const Tensor& target, const PerSample& per_sample = {});
/// |x - target|
Loss l1(const Var& x, const Tensor& target, const PerSample& per_sample = {});
/// With d = |x - target|: d^2 / (2 beta) where d < beta, d - beta / 2 beyond. beta >= 0.
Loss smooth_l1(const Var& x, const Tensor& target, float beta = 1, const PerSample& per_sample = {});
/// The binary cross entropy of sigmoid(x) and targets in [0, 1].
Loss bce_with_logits(const Var& x, const Tensor& target, const PerSample& per_sample = {});

template <class Function>
Var elementwise(const Var& x, const Function& function) {
  const auto like = [](Tape& t, const Tensor& tensor) {
    return t.backend().empty(tensor.shape(), tensor.dtype(), tensor.channel_block());
  };
  Tape& tape = x.tape();
  const Tensor y = like(tape, x.value());
  tape.backend().run(ops::Map<ops::Value<Function>>{{function}, {x.value()}, y});
  // The next function keeps y anyway: if the slope follows from y, x need not be kept.
  constexpr bool by_value = requires { Function::slope_by_value; };
  return tape.record(y, {&x},
                     [x = by_value ? x.without_value() : x, at = by_value ? y : x.value(), function, like](
                         Tape& t, const Tensor& dy) {
                       if (!x.needs_gradient()) return;
                       const Tensor dx = like(t, dy);
                       t.backend().run(ops::Map<ops::Slope<Function>>{{function}, {at, dy}, dx});
                       t.add_gradient(x, dx);
                     });
}

}  // namespace lockstep
