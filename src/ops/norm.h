// Layer norm, RMS norm, group norm and adaptive group norm.
#pragma once

#include "lockstep/base/random.h"
#include "lockstep/ops/operation.h"

namespace lockstep::ops {

/// A tensor as rows of its last dimension.
struct Rows {
  std::int64_t count, width;
};
/// UsageError for a scalar.
Rows rows_of(const char* operation, const Tensor& x);

/// The norm over the last dimension of x [rows..., n] (Ba, Kiros, Hinton, 2016). weight, bias: [n]; mean,
/// inv_std: one per row. With an addend: the norm of sum = x + addend, rounded to its type.
struct LayerNorm {
  static constexpr const char* name = "layer_norm";
  Tensor x, addend = {}, weight, bias;
  float eps = 0;
  Tensor sum = {}, y, mean, inv_std;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x).by_row(), in("the addend", op.addend).by_row().optional(),
         in("weight", op.weight, float32).shared(), in("bias", op.bias, float32).shared(),
         out("the sum", op.sum).by_row().optional(), out("y", op.y).by_row(),
         out("mean", op.mean, float32).by_row(), out("inv_std", op.inv_std, float32).by_row());
  }
  void check() const;
};

/// dx = residual_grad + the gradient; residual_grad, the gradient that reaches x past the norm, may be
/// absent. accumulate applies to dweight and dbias.
struct LayerNormBackward {
  static constexpr const char* name = "layer_norm_backward";
  Tensor dy, x, weight, mean, inv_std, residual_grad, dx, dweight, dbias;
  bool accumulate = false;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy).by_row(), in("x", op.x).by_row(), in("weight", op.weight, float32).shared(),
         in("mean", op.mean, float32).by_row(), in("inv_std", op.inv_std, float32).by_row(),
         in("residual_grad", op.residual_grad).by_row().optional(), out("dx", op.dx).by_row(),
         in_out("dweight", op.dweight, float32).per_part(), in_out("dbias", op.dbias, float32).per_part());
  }
  void check() const;
};

/// y = weight x / sqrt(mean of x^2 + eps) over the last dimension of x [rows..., n] (Zhang, Sennrich, 2019).
/// weight: [n]; inv_rms: one per row.
struct RmsNorm {
  static constexpr const char* name = "rms_norm";
  Tensor x, weight;
  float eps = 0;
  Tensor y, inv_rms;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x).by_row(), in("weight", op.weight, float32).shared(), out("y", op.y).by_row(),
         out("inv_rms", op.inv_rms, float32).by_row());
  }
  void check() const;
};

/// dx = residual_grad + the gradient; residual_grad, the gradient that reaches x past the norm, and dweight
/// may be absent. accumulate applies to dweight.
struct RmsNormBackward {
  static constexpr const char* name = "rms_norm_backward";
  Tensor dy, x, weight, inv_rms, residual_grad, dx, dweight;
  bool accumulate = false;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy).by_row(), in("x", op.x).by_row(), in("weight", op.weight, float32).shared(),
         in("inv_rms", op.inv_rms, float32).by_row(),
         in("residual_grad", op.residual_grad).by_row().optional(), out("dx", op.dx).by_row(),
         in_out("dweight", op.dweight, float32).per_part().optional());
  }
  void check() const;
};

/// The sizes of a group norm.
struct GroupSizes {
  std::int64_t images, channels, groups, channels_per_group, positions;

  /// The elements that share a mean and a deviation.
  std::int64_t group_elements() const { return channels_per_group * positions; }
};

/// x: plain [N, C, H, W]; weight, bias: [C]; mean, inv_std: [N, groups] (Wu, He, 2018).
struct GroupNorm {
  static constexpr const char* name = "group_norm";
  Tensor x;
  int groups = 1;
  Tensor weight, bias;
  float eps = 0;
  Tensor y, mean, inv_std;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x), in("weight", op.weight, float32).shared(), in("bias", op.bias, float32).shared(),
         out("y", op.y), out("mean", op.mean, float32), out("inv_std", op.inv_std, float32));
  }
  GroupSizes sizes() const;
  void check() const;
};

/// The gradients of GroupNorm.
struct GroupNormBackward {
  static constexpr const char* name = "group_norm_backward";
  Tensor dy, x;
  int groups = 1;
  Tensor weight, mean, inv_std, dx, dweight, dbias;
  bool accumulate = false;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy), in("x", op.x), in("weight", op.weight, float32).shared(),
         in("mean", op.mean, float32), in("inv_std", op.inv_std, float32), out("dx", op.dx),
         in_out("dweight", op.dweight, float32).per_part(), in_out("dbias", op.dbias, float32).per_part());
  }
  GroupSizes sizes() const;
  void check() const;
};

/// Group norm whose input or result also depends on a vector of the image, with the SiLU that follows
/// (Dhariwal, Nichol, "Diffusion models beat GANs on image synthesis", 2021):
///
///   h = x + addend          [N, C, H, W] + [N, C]
///   z = group norm of h, weight and bias per channel; mean, inv_std: [N, groups], of h
///   y = silu(z (1 + scale) + shift), where scale_shift [N, 2 C] has the scales of the channels, then the
///   shifts
///
/// Without an addend h is x. Without scale_shift nothing is scaled or shifted. silu is an attribute. x and y
/// have the same layout, which may be any. With p > 0, Dropout of y by `key` follows.
struct AdaptiveGroupNorm {
  static constexpr const char* name = "adaptive_group_norm";
  Tensor x, addend = {};
  int groups = 1;
  Tensor weight, bias, scale_shift = {};
  float eps = 0;
  bool silu = false;
  Tensor y, mean, inv_std;
  float p = 0;
  RandomKey key{};

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x).blocked(), in("the addend", op.addend).optional(),
         in("weight", op.weight, float32).shared(), in("bias", op.bias, float32).shared(),
         in("scale_shift", op.scale_shift).optional(), out("y", op.y).blocked(),
         out("mean", op.mean, float32), out("inv_std", op.inv_std, float32));
  }
  GroupSizes sizes() const;
  void check() const;
};

/// The gradients of AdaptiveGroupNorm. dx = residual_grad + the gradient; residual_grad, the gradient that
/// reaches x past the norm, may be absent. daddend and dscale_shift are present if their inputs are.
/// accumulate applies to dweight and dbias.
struct AdaptiveGroupNormBackward {
  static constexpr const char* name = "adaptive_group_norm_backward";
  Tensor dy, x, addend = {};
  int groups = 1;
  Tensor weight, bias, scale_shift = {};
  float eps = 0;
  bool silu = false;
  Tensor mean, inv_std, residual_grad = {}, dx, daddend = {}, dscale_shift = {}, dweight, dbias;
  bool accumulate = false;
  float p = 0;
  RandomKey key{};

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy).blocked(), in("x", op.x).blocked(), in("the addend", op.addend).optional(),
         in("weight", op.weight, float32).shared(), in("bias", op.bias, float32).shared(),
         in("scale_shift", op.scale_shift).optional(), in("mean", op.mean, float32),
         in("inv_std", op.inv_std, float32), in("residual_grad", op.residual_grad).blocked().optional(),
         out("dx", op.dx).blocked(), out("daddend", op.daddend).optional(),
         out("dscale_shift", op.dscale_shift).optional(), in_out("dweight", op.dweight, float32).per_part(),
         in_out("dbias", op.dbias, float32).per_part());
  }
  GroupSizes sizes() const;
  void check() const;
};

}  // namespace lockstep::ops
