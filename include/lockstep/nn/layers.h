// Layers: Linear, Embedding, Dropout, convolutions of rows, images and volumes, and MultiheadAttention.
#pragma once

#include <optional>

#include "lockstep/autograd/functions.h"
#include "lockstep/base/random.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// y = x weight' + bias over the last dimension. weight: [out, in], bias: [out], both U(+-1 / sqrt(in)) at
/// first.
class Linear : public Layer<Linear> {
 public:
  Linear(Module& parent, std::string_view name, std::int64_t in, std::int64_t out, bool with_bias = true);

  /// Marks this layer as the model's output head (Param::role).
  void mark_as_head();

  Var forward(const Var& x);
  /// activation(linear(x)), fused.
  Var forward(const Var& x, ops::Activation activation);

  Parameter weight;
  std::optional<Parameter> bias;
};

/// out(activation(in(x))), fused.
Var feed_forward(const Var& x, Linear& in, ops::Activation activation, Linear& out);

/// weight: [rows, width], N(0, 1) at first; its role is that of an embedding.
class Embedding : public Layer<Embedding> {
 public:
  Embedding(Module& parent, std::string_view name, std::int64_t rows, std::int64_t width)
      : Layer(parent, name), weight(*this, "weight", {rows, width}, Init::normal(1)) {
    weight.role = Param::Role::embedding;
  }

  /// indices: int64, any shape; result [indices..., width].
  Var forward(Tape& tape, const Tensor& indices) { return embedding(indices, tape.parameter(weight)); }

  Parameter weight;
};

/// Zeroes elements with probability p and scales the rest by 1 / (1 - p). Draws are keyed by the pass and by
/// this module's path: use one Dropout per place in the model.
class Dropout : public Layer<Dropout> {
 public:
  /// Throws UsageError unless 0 <= p < 1.
  Dropout(Module& parent, std::string_view name, float p)
      : Layer(parent, name), p_(p), purpose_(purpose_of("dropout:" + path())) {
    if (!(p >= 0 && p < 1)) throw UsageError("{}: a dropout probability of {} is not in [0, 1)", path(), p);
  }

  Var forward(const Var& x) { return dropout(x, p_, purpose_); }
  float p() const { return p_; }                      ///< the probability
  std::uint64_t purpose() const { return purpose_; }  ///< what keys its draws

 private:
  float p_;
  std::uint64_t purpose_;
};

/// The common part of convolutions: weight and bias, both U(+-1 / sqrt(fan_in)) at first, where fan_in is the
/// product of all extents of the weight except the first.
struct ConvolutionParameters {
  /// Registers both with the owner.
  ConvolutionParameters(Module& owner, const Shape& weight_shape, std::int64_t out, bool with_bias);

  Parameter weight;
  std::optional<Parameter> bias;
};

/// One number for all directions, or one for each: {height, width}, {depth, height, width}.
struct Conv2dOptions {
  ops::Directions stride = 1;    ///< step of the window
  ops::Directions padding = 0;   ///< zeros on each side
  ops::Directions dilation = 1;  ///< distance of the elements of the window
  int groups = 1;                ///< into which channels are divided
  bool bias = true;              ///< whether there is a bias
};
using Conv1dOptions = Conv2dOptions;  ///< of which one number counts
using Conv3dOptions = Conv2dOptions;  ///< with three directions

/// A convolution in `dims` directions: of rows (1), images (2) or volumes (3). x: [N, in, positions...];
/// weight: [out, in / groups, kernel...], bias: [out].
class ConvNd : public Layer<ConvNd>, public ConvolutionParameters {
 public:
  /// Throws UsageError if groups do not divide both channel counts, or the kernel lacks a direction.
  ConvNd(Module& parent, std::string_view name, int dims, std::int64_t in, std::int64_t out,
         const ops::Directions& kernel, const Conv2dOptions& options = {});

  /// The convolution of x, plus residual where it is given (of images and volumes).
  Var forward(const Var& x, const Var& residual = {});

 private:
  int dims_;
  ops::ConvolutionGeometry geometry_;
};

/// The options of PyTorch's ConvTranspose2d.
struct ConvTranspose2dOptions {
  ops::Directions stride = 1;          ///< step of the window
  ops::Directions padding = 0;         ///< removed around the result
  ops::Directions output_padding = 0;  ///< added to the result's extent; less than the stride
  ops::Directions dilation = 1;        ///< distance of the elements of the window
  int groups = 1;                      ///< into which channels are divided
  bool bias = true;                    ///< whether there is a bias
};
using ConvTranspose3dOptions = ConvTranspose2dOptions;  ///< with three directions

/// A transposed convolution of images or volumes. weight: [in, out / groups, kernel...], bias: [out]. The
/// result's extents: conv_transpose2d.
class ConvTransposeNd : public Layer<ConvTransposeNd>, public ConvolutionParameters {
 public:
  /// Throws UsageError if groups do not divide both channel counts, or the kernel lacks a direction.
  ConvTransposeNd(Module& parent, std::string_view name, int dims, std::int64_t in, std::int64_t out,
                  const ops::Directions& kernel, const ConvTranspose2dOptions& options = {});

  Var forward(const Var& x);

 private:
  int dims_;
  ops::ConvolutionGeometry geometry_;
  ops::Directions output_padding_;
};

/// `Convolution` in so many directions.
template <class Convolution, class Options, int dims>
class WithDims : public Convolution {
 public:
  WithDims(Module& parent, std::string_view name, std::int64_t in, std::int64_t out,
           const ops::Directions& kernel, const Options& options = {})
      : Convolution(parent, name, dims, in, out, kernel, options) {}
};
using Conv1d = WithDims<ConvNd, Conv1dOptions, 1>;  ///< x: [N, in, L]; weight: [out, in / groups, kernel]
using Conv2d = WithDims<ConvNd, Conv2dOptions, 2>;  ///< x: [N, in, H, W]; weight: [out, in / groups, kh, kw]
using Conv3d =
    WithDims<ConvNd, Conv3dOptions, 3>;  ///< x: [N, in, D, H, W]; weight: [out, in / groups, kd, kh, kw]
using ConvTranspose2d = WithDims<ConvTransposeNd, ConvTranspose2dOptions, 2>;  ///< of images
using ConvTranspose3d = WithDims<ConvTransposeNd, ConvTranspose3dOptions, 3>;  ///< of volumes

/// PyTorch's MultiheadAttention with batch_first: out_proj(attention of the thirds of x in_proj_weight' +
/// in_proj_bias). in_proj_weight: [3 C, C], uniform as by Glorot and Bengio (2010) at first; biases begin at
/// 0.
class MultiheadAttention : public Layer<MultiheadAttention> {
 public:
  /// Throws UsageError if the heads do not divide the channels.
  MultiheadAttention(Module& parent, std::string_view name, std::int64_t channels, int heads,
                     bool with_bias = true);

  /// Self-attention of x: [B, T, C]; with `causal`, to positions up to its own.
  Var forward(const Var& x, bool causal = false, const AttentionBias& bias = {});
  /// Attention of query: [B, Tq, C] to key and value: [B, Tk, C].
  Var forward(const Var& query, const Var& key, const Var& value, bool causal = false);

 private:
  int heads_;

 public:
  Parameter in_proj_weight;
  std::optional<Parameter> in_proj_bias;
  Linear out_proj;  ///< of the joined heads
};

}  // namespace lockstep::nn
