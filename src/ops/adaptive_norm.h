// Adaptive group norm (Dhariwal, Nichol, "Diffusion models beat GANs on image synthesis", 2021): group norm
// whose input or result also depends on a vector of the image, with the SiLU that follows.
//
//   h = x + addend          [N, C, H, W] + [N, C]
//   z = group norm of h, weight and bias per channel (norm.h)
//   y = silu(z (1 + scale) + shift), where scale_shift [N, 2 C] has the scales of the channels, then the
//   shifts
//
// Without an addend h is x, without scale_shift neither scales nor shifts, and silu is an attribute. x and y
// are in one layout, which may be any.
#pragma once

#include "ops/norm.h"

namespace lockstep::ops {

/// y as above; mean, inv_std: [N, groups], of h.
struct AdaptiveGroupNorm {
  static constexpr const char* name = "adaptive_group_norm";
  Tensor x, addend = {};
  int groups = 1;
  Tensor weight, bias, scale_shift = {};
  float eps = 0;
  bool silu = false;
  Tensor y, mean, inv_std;

  static void operands(auto& op, auto&& each) {
    each(in("x", op.x).blocked(), in("the addend", op.addend).optional(), in("weight", op.weight, float32),
         in("bias", op.bias, float32), in("scale_shift", op.scale_shift).optional(), out("y", op.y).blocked(),
         out("mean", op.mean, float32), out("inv_std", op.inv_std, float32));
  }
  GroupSizes sizes() const;
  void check() const;
};

/// The gradients of AdaptiveGroupNorm. dx = residual_grad + the gradient; residual_grad, the gradient that x
/// gets from elsewhere, may be absent. daddend and dscale_shift are there where their inputs are. accumulate:
/// of dweight and dbias.
struct AdaptiveGroupNormBackward {
  static constexpr const char* name = "adaptive_group_norm_backward";
  Tensor dy, x, addend = {};
  int groups = 1;
  Tensor weight, bias, scale_shift = {};
  float eps = 0;
  bool silu = false;
  Tensor mean, inv_std, residual_grad = {}, dx, daddend = {}, dscale_shift = {}, dweight, dbias;
  bool accumulate = false;

  static void operands(auto& op, auto&& each) {
    each(in("dy", op.dy).blocked(), in("x", op.x).blocked(), in("the addend", op.addend).optional(),
         in("weight", op.weight, float32), in("bias", op.bias, float32),
         in("scale_shift", op.scale_shift).optional(), in("mean", op.mean, float32),
         in("inv_std", op.inv_std, float32), in("residual_grad", op.residual_grad).blocked().optional(),
         out("dx", op.dx).blocked(), out("daddend", op.daddend).optional(),
         out("dscale_shift", op.dscale_shift).optional(), in_out("dweight", op.dweight, float32),
         in_out("dbias", op.dbias, float32));
  }
  GroupSizes sizes() const;
  void check() const;
};

}  // namespace lockstep::ops
