// How far a bf16 result may be from PyTorch's, element by element. Both round what they store, and some
// intermediates; beyond that only float32 arithmetic sets them apart. An element's bound is the sum of
//   * half a unit in the last place for each of the two that is stored in bf16: none for what only moves,
//   * `unit` times the magnitudes of the intermediates that one of the two rounds, as far as they reach it,
//   * `float32_sum` times the magnitudes of the terms that are added up for it in float32.
// The magnitudes of terms are what an operation makes of the magnitudes of its inputs and gradients.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/autograd/functions.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::test::bounds {

/// The relative error of a rounding to bf16, at most.
inline constexpr float unit = 0x1p-8f;
/// Of a sum in float32: some hundred roundings in one direction.
inline constexpr float float32_sum = 0x1p-17f;
/// Of a formula in float32.
inline constexpr float float32_formula = 0x1p-22f;

/// What a bound is computed from, in float32.
struct Known {
  const nlohmann::json& what;  ///< the case's arguments
  std::vector<Var> x;
  Var dy, y;  ///< the gradient of the output, and the output as PyTorch has it
  Var off;    ///< how far our output is from it: each computes gradients from its own
};

/// To be added to the bound of the output, then of the gradient of each input; nothing for a Var{}.
using Additions = std::vector<Var>;

struct Bound {
  bool moves = false;  ///< elements change places or signs: the same bits
  /// The operation that adds up the magnitudes of terms; none: the result is the only term.
  const char* terms = nullptr;
  float output = 0;    ///< roundings of each term of the output, but for that of the result
  float gradient = 0;  ///< of each term of the gradients
  std::function<Additions(const Known&)> more = {};
  /// On a processor without AVX-512 PyTorch adds the products of a kernel's places, and those of images, in
  /// bf16: a rounding for each place.
  bool sums_in_bf16 = false;
};

/// Both compute the slope from their own rounded output; change(y): of the slope with the output.
template <class Change>
auto slope_of_output(const Change& change) {
  return [change](const Known& at) -> Additions { return {Var{}, abs(at.dy * change(at.y)) * at.off}; };
}

/// Parts that cancel in float32, and their magnitudes: of the value, and of the slope.
template <class Parts>
auto cancelling(const Parts& of_value, const Parts& of_slope) {
  return [of_value, of_slope](const Known& at) -> Additions {
    return {float32_formula * of_value(at.x[0]), float32_formula * abs(at.dy) * of_slope(at.x[0])};
  };
}

inline Var nothing(const Var& x) { return 0.0f * x; }
inline Var one(const Var& x) { return 0.0f * x + 1.0f; }
inline Var size(const Var& x) { return abs(x); }
inline Var one_and_square(const Var& x) { return square(x) + 1.0f; }

inline Axes axes_of(const Known& at) {
  Axes all;
  for (const int axis : at.what.at("dims")) all.add(axis);
  return all;
}

/// The result of a reduction, with extent 1 along its axes.
inline Var kept(const Known& at, const Var& reduced) {
  Shape shape = at.x[0].shape();
  for (const int axis : axes_of(at)) shape = shape.with(axis, 1);
  return reshape(reduced, shape);
}

inline bool on_cpu(const Var& x) { return x.value().device() == Device::cpu(); }

/// Any slope between those of both sides where a rounded input hits the kink: PyTorch's changed with
/// versions.
inline Var at_kink(const Known& at, float place, float jump) {
  const float rounded = from_bfloat16_bits(bfloat16_bits(place));
  return jump * abs(at.dy) * relu(1.0f - 1e6f * abs(at.x[0] - rounded));
}

inline Additions of_clamp(const Known& at) {
  return {Var{}, at_kink(at, at.what.at("low"), 1) + at_kink(at, at.what.at("high"), 1)};
}

inline Additions of_hardswish(const Known& at) {
  return {Var{}, float32_formula * abs(at.dy) + at_kink(at, -3, 0.5f) + at_kink(at, 3, 0.5f)};
}

/// 2 dy e^(-x^2) / sqrt(pi): PyTorch rounds x^2, whose error the exponential takes x^2 times, the
/// exponential, and its product with the factor.
inline Additions of_erf(const Known& at) {
  const Var& x = at.x[0];
  return {Var{}, unit * abs(at.dy) * exp(-square(x)) * (square(x) + 2.0f) * 1.13f};
}

/// y (dy - the sum of y dy), each of its own y.
inline Additions of_softmax(const Known& at) {
  const int axis = at.what.at("dim");
  const Var dy = abs(at.dy);
  return {Var{}, at.off * (dy + sum(at.y * dy, axis, true)) + at.y * sum(at.off * dy, axis, true)};
}

/// The same over the rows of segments.
inline Additions of_segment_softmax(const Known& at) {
  const Tensor& indices = at.x[1].value();
  const auto sums = [&](const Var& v) {
    return index_select(segment_sum(v, indices, at.what.at("segments")), 0, indices);
  };
  const Var dy = abs(at.dy);
  return {Var{}, at.off * (dy + sums(at.y * dy)) + at.y * sums(at.off * dy)};
}

/// dy - e^y (the sum of dy), each of its own y. Along the last axis PyTorch stores x - max, the sum of its
/// exponentials, and the logarithm.
inline Additions of_log_softmax(const Known& at) {
  const Var& x = at.x[0];
  const int axis = at.what.at("dim"), rank = x.shape().rank();
  const Var y = log_softmax(x, axis), p = exp(y), below = amax(x, axis, true) - x;
  const bool last = axis == -1 || axis == rank - 1;
  return {last ? unit * (sum(p * below, axis, true) + 1.0f + abs(y)) : Var{},
          p * abs(sum(at.dy, axis, true)) * at.off};
}

/// PyTorch composes it of x - max, exponential, sum, logarithm and max, and stores each of them. Its gradient
/// is dy e^(x - y), of the stored y, x - y and exponential.
inline Additions of_logsumexp(const Known& at) {
  const Var& x = at.x[0];
  const Axes axes = axes_of(at);
  const Var y = logsumexp(x, axes, true), p = exp(x - y), most = amax(x, axes, true);
  const Var output = unit * (sum(p * (most - x), axes, true) + 2.0f + (y - most));
  return {reshape(output, at.y.shape()),
          p * abs(kept(at, at.dy)) * (abs(kept(at, at.y) - y) + unit * (abs(x - y) + 1.0f))};
}

/// The gradient is (2 / count) dy (x - mean): PyTorch stores the mean, the difference and one product.
inline Additions of_variance(const Known& at) {
  const Var& x = at.x[0];
  const Var middle = mean(x, axes_of(at), true);
  const auto count = static_cast<float>(x.shape().numel() / middle.shape().numel());
  return {Var{}, 2 * unit / count * abs(kept(at, at.dy)) * (abs(middle) + 2.0f * abs(x - middle))};
}

/// PyTorch's backward reads the mean and the inverse deviation f rounded:
///   dx = f (g - mean g - f^2 (x - mean) (mean of g (x - mean))), g = weight dy,
///   dweight = sum of f dy (x - mean).
inline Additions of_group_norm(const Known& at) {
  const Shape& image = at.x[0].shape();
  const std::int64_t groups = at.what.at("groups");
  const Shape rows{image[0], groups, image.numel() / image[0] / groups};
  Shape channels{1, image[1]}, of_images{image[0], image[1]};
  Axes positions;
  for (int axis = 2; axis < image.rank(); ++axis) {
    channels.append(1);
    of_images.append(1);
    positions.add(axis);
  }
  const auto in_rows = [&](const Var& v) { return reshape(v, rows); };
  const auto in_channels = [&](const Var& v) { return sum(reshape(v, image), positions, true); };
  const auto for_channels = [&](const Var& v) {  // of each row
    return reshape(expand(reshape(v, {rows[0], rows[1], 1}), {rows[0], rows[1], image[1] / groups}),
                   of_images);
  };
  const Var x = in_rows(at.x[0]), g = in_rows(at.dy * reshape(at.x[1], channels)), middle = mean(x, -1, true);
  const Var off = x - middle, f = rsqrt(mean(square(off), -1, true) + at.what.at("eps").get<float>());
  const Var shift = abs(mean(g, -1, true)), slope = square(f) * abs(mean(g * off, -1, true)),
            size = abs(middle);
  const Var dx =
      f * (abs(g) + shift + slope * (3.0f * abs(off) + size) + square(f) * abs(off) * shift * size);
  const Var dweight = for_channels(f) *
                      (abs(in_channels(in_rows(at.dy) * off)) + for_channels(size) * abs(in_channels(at.dy)));
  return {Var{}, unit * reshape(dx, image), unit * reshape(sum(dweight, 0), at.x[1].shape())};
}

/// dx = f weight (dy - mean dy - x (mean of dy x)) of normalised x: parts that cancel in float32.
inline Additions of_batch_norm(const Known& at) {
  const Var& x = at.x[0];
  Axes all{0};
  for (int axis = 2; axis < x.shape().rank(); ++axis) all.add(axis);
  Shape channels{1, x.shape()[1]};
  while (channels.rank() < x.shape().rank()) channels.append(1);
  const Var off = x - mean(x, all, true),
            f = rsqrt(mean(square(off), all, true) + at.what.at("eps").get<float>());
  const Var size = f * abs(off), dy = abs(at.dy), weight = abs(reshape(at.x[1], channels));
  return {float32_sum * (weight * size + abs(reshape(at.x[2], channels))),
          float32_sum * weight * f * (dy + mean(dy, all, true) + size * mean(dy * size, all, true)),
          float32_sum * reshape(sum(dy * size, all), at.x[1].shape()),
          float32_sum * reshape(sum(dy, all), at.x[1].shape())};
}

/// The terms of the gradients that cancel in float32.
inline Additions of_rms_norm(const Known& at) {
  const Var &x = at.x[0], g = abs(at.dy * at.x[1]);
  const Var f = rsqrt(mean(square(x), -1, true) + at.what.at("eps").get<float>()), size = f * abs(x);
  Axes rows;
  for (int axis = 0; axis + 1 < x.shape().rank(); ++axis) rows.add(axis);
  return {Var{}, float32_sum * f * (g + size * mean(g * size, -1, true)),
          float32_sum * sum(abs(at.dy) * size, rows)};
}

/// PyTorch's result is float32, and so is the gradient that it takes; ours is rounded first. Its two products
/// are rounded before they are added.
inline Additions of_rotary(const Known& at) {
  const Shape& shape = at.dy.shape();
  const bool halves = at.what.at("layout") == "halves";
  const std::int64_t half = shape[-1] / 2;
  Shape split = shape.with(-1, halves ? 2 : half);
  split.append(halves ? half : 2);
  const auto pairs = [&](const Var& v) {
    return reshape(expand(sum(reshape(abs(v), split), halves ? -2 : -1, true), split), shape);
  };
  return {float32_sum * pairs(at.x[0]), 2 * unit * pairs(at.dy)};
}

/// With P = softmax(scale q k') and dS = scale P (dy v' - the sum of y dy), each of its own y: products take
/// P and dS in bf16, ours on a GPU only, and PyTorch adds rounded gradients of heads that share keys.
inline Additions of_attention(const Known& at) {
  const Var &q = at.x[0], &dy = at.dy;
  const Shape &s = q.shape(), &keys = at.x[1].shape();
  const std::int64_t group = s[1] / keys[1];
  const Shape grouped{s[0], keys[1], group, keys[2], keys[3]};
  const auto repeated = [&](const Var& v) {
    return reshape(expand(reshape(v, grouped.with(2, 1)), grouped), {s[0], s[1], keys[2], keys[3]});
  };
  const auto joined = [&](const Var& v) { return reshape(sum(reshape(v, grouped), 2), keys); };
  const Var k = repeated(at.x[1]), v = repeated(at.x[2]);
  const float scale = 1 / std::sqrt(static_cast<float>(s[3]));
  Var scores = scale * matmul(q, transpose(k, 2, 3));
  if (at.what.at("causal").get<bool>()) {
    const Var ones = one(scores), later = cumsum(ones, 3) - cumsum(ones, 2);  // by how much the key is
    scores = scores - 1e9f * relu(later);
  }
  if (at.what.contains("bias")) scores = scores + at.x[3];
  if (at.what.contains("key_mask"))
    scores = scores + where(at.x[3].value().reshape({s[0], 1, 1, keys[2]}), 0.0f * scores, -1e9f);
  const Var p = softmax(scores), sizes = matmul(p, abs(v));
  const Var terms = matmul(abs(dy), abs(transpose(v, 2, 3))) + sum(sizes * abs(dy), -1, true);
  const Var moved = scale * p * (sum(at.off * abs(dy), -1, true) + float32_sum * terms);
  const Var ds = scale * p * abs(matmul(dy, transpose(v, 2, 3)) - sum(matmul(p, v) * dy, -1, true));
  const float products = on_cpu(q) ? unit : 2 * unit;
  const float shared = group == 1 ? products : products + unit;
  const auto for_keys = [&](const Var& of_keys, const Var& of_queries) {
    return joined(matmul(transpose(of_keys, 2, 3), abs(of_queries)));
  };
  Additions all{products * sizes, matmul(products * ds + moved, abs(k)), for_keys(shared * ds + moved, q),
                for_keys(shared * p, dy)};
  if (at.what.contains("bias")) {
    Var of_bias = moved / scale;
    for (int axis = 0; axis < 2; ++axis)
      if (at.x[3].shape()[axis] == 1) of_bias = sum(of_bias, axis, true);
    all.push_back(of_bias);
  }
  return all;
}

/// Ours is rounded before the bias is added.
inline Additions of_bias(const Known& at) {
  Shape channels{at.x[2].shape()[0]};
  while (channels.rank() + 1 < at.y.shape().rank()) channels.append(1);
  return {unit * abs(at.y - reshape(at.x[2], channels))};
}
inline Additions of_bias_on_a_gpu(const Known& at) { return on_cpu(at.y) ? Additions() : of_bias(at); }

/// PyTorch rounds log(sigmoid(x)), and the sigmoid in the gradient.
inline Additions of_bce(const Known& at) {
  const Var& x = at.x[0];
  return {unit * sum(abs(log_sigmoid(x))), unit * abs(at.dy) * sigmoid(x)};
}

/// By operation.
inline const std::map<std::string, Bound>& all() {
  static const Bound moves{.moves = true}, rounds{};
  static const auto cancels_in_slope = cancelling(nothing, one);
  static const std::map<std::string, Bound> all{
      {"neg", moves},
      {"abs", moves},
      {"relu", moves},
      {"clamp", {.moves = true, .more = of_clamp}},
      {"concat", moves},
      {"stack", moves},
      {"narrow", moves},
      {"chunk", moves},
      {"permute", moves},
      {"pad", moves},
      {"flip", moves},
      // One formula in float32, rounded once.
      {"log", rounds},
      {"square", rounds},
      {"softplus", rounds},
      {"leaky_relu", rounds},
      {"scale", rounds},
      {"add_scalar", rounds},
      {"amax", rounds},
      {"amin", rounds},
      {"mse_loss", rounds},
      {"l1_loss", rounds},
      {"smooth_l1_loss", rounds},
      {"silu", {.more = cancels_in_slope}},
      {"mish", {.more = cancels_in_slope}},
      {"hardswish", {.more = of_hardswish}},
      {"elu", {.more = cancelling(one, nothing)}},
      {"sin", {.gradient = 1, .more = cancelling(one, one)}},  // PyTorch rounds the cosine
      {"cos", {.gradient = 1, .more = cancelling(one, one)}},
      {"gelu_erf", {.more = cancelling(size, one_and_square)}},  // 1 + erf(x)
      {"gelu_tanh", {.more = cancelling(size, one_and_square)}},
      // The slope of the stored output.
      {"tanh", {.more = slope_of_output([](const Var& y) { return 2.0f * y; })}},
      {"sigmoid", {.more = slope_of_output([](const Var& y) { return 1.0f - 2.0f * y; })}},
      {"exp", {.more = slope_of_output([](const Var& y) { return one(y); })}},
      {"sqrt", {.more = slope_of_output([](const Var& y) { return 0.5f / square(y); })}},
      // PyTorch rounds the root, and the two products of y^3.
      {"rsqrt",
       {.output = 1, .gradient = 2, .more = slope_of_output([](const Var& y) { return 1.5f * square(y); })}},
      {"reciprocal", {.gradient = 3}},        // -dy (y y): y twice, the square
      {"log_sigmoid", {.gradient = 1}},       // e^-|x|
      {"pow", {.output = 1, .gradient = 3}},  // x x; exponent x^(exponent - 1): the power's two, the product
      {"erf", {.more = of_erf}},
      // The gradients' terms, which broadcasting adds up, are stored.
      {"add", {.terms = "add"}},
      {"sub", {.terms = "add"}},
      {"maximum", {.terms = "add"}},
      {"minimum", {.terms = "add"}},
      {"where", {.terms = "where"}},
      {"mul", {.terms = "mul", .gradient = 1}},
      {"div", {.terms = "div", .gradient = 3}},  // -dy ((a / b) / b)
      // Sums in float32.
      {"sum", {.terms = "sum"}},
      {"mean", {.terms = "mean"}},
      {"cumsum", {.terms = "cumsum"}},
      {"expand", {.terms = "expand"}},
      {"index_select", {.terms = "index_select"}},
      {"gather", {.terms = "gather"}},
      {"lengths", {.terms = "lengths"}},
      {"segment_sum", {.terms = "segment_sum"}},
      {"segment_mean", {.terms = "segment_mean"}},
      {"segment_max", rounds},
      {"segment_softmax", {.more = of_segment_softmax}},
      {"resize_bilinear", {.terms = "resize_bilinear"}},
      {"max_pool3d", {.terms = "max_pool3d"}},  // windows overlap
      {"avg_pool3d", {.terms = "avg_pool3d"}},
      {"adaptive_avg_pool", {.terms = "adaptive_avg_pool"}},
      {"upsample_nearest3d", {.terms = "upsample_nearest3d"}},
      {"resize_trilinear",
       {.terms = "resize_trilinear", .output = 1, .gradient = 1}},  // between its two steps
      {"batch_norm", {.more = of_batch_norm}},
      {"matmul", {.terms = "matmul"}},
      {"conv1d", {.terms = "conv1d", .more = of_bias_on_a_gpu, .sums_in_bf16 = true}},
      {"conv2d", {.terms = "conv2d", .more = of_bias_on_a_gpu, .sums_in_bf16 = true}},
      {"conv3d", {.terms = "conv3d", .more = of_bias_on_a_gpu, .sums_in_bf16 = true}},
      {"conv_transpose3d", {.terms = "conv_transpose3d", .more = of_bias, .sums_in_bf16 = true}},
      {"conv_transpose2d", {.terms = "conv_transpose2d", .more = of_bias, .sums_in_bf16 = true}},
      // Several steps.
      {"softmax", {.output = 1, .more = of_softmax}},  // PyTorch stores the exponentials
      {"log_softmax", {.more = of_log_softmax}},
      {"logsumexp", {.more = of_logsumexp}},
      {"variance", {.more = of_variance}},
      {"group_norm", {.more = of_group_norm}},
      {"rms_norm", {.more = of_rms_norm}},
      {"rotary", {.more = of_rotary}},
      {"attention", {.more = of_attention}},
      {"bce_with_logits", {.more = of_bce}},
  };
  return all;
}

}  // namespace lockstep::test::bounds
