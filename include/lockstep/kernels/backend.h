// The numeric operations, one virtual function each; kernels/cpu and kernels/cuda implement them.
//
// Conventions. Every tensor lies on the backend's device. Float tensors are float32 unless said. Outputs are
// allocated by the caller (empty()) and do not overlap inputs unless said. A batch of 0 is legal everywhere.
// `accumulate` adds to what the output holds; otherwise the output is overwritten. Results depend on the
// arguments, the instruction set and threads() only: never on addresses, timing, or what ran before. Wrong
// shapes throw UsageError naming the operation. Steady state: calls with shapes seen before allocate nothing.
//
// A GPU runs behind the program: an operation has been asked for, not done, when it returns, and results are
// tensors, never host values. A copy to the CPU is a read: it waits, and what it brings is there when it
// returns. DataErrors (an index outside) are thrown at once, or by a device that runs behind at the next
// read.
//
// Two types of activation. Activations and their gradients (x, y, dx, dy, q, k, v, logits, targets that are
// floats) are float32 or bf16, all those of one call the same. Weights of linear and convolution are either:
// they are rounded to the activations' type on the way, so a copy in that type saves the way. All else is
// float32 whatever the activations are, or what is said: biases, rows, tables of embedding, scales and shifts
// and statistics of norms, what attention saves, gradients of parameters. Sums are float32 or wider, and a
// result is rounded once, to nearest even. Fused operations go on from what they store (`before`, `sum`,
// `gated`) as it was rounded; only a GPU's GELU may see its sums before they are.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/base/random.h"
#include "lockstep/kernels/feed.h"
#include "lockstep/kernels/parameters.h"
#include "lockstep/kernels/recording.h"
#include "lockstep/kernels/timer.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::kernels {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual Device device() const = 0;
  virtual int threads() const = 0;  ///< threads per operation; fixed for the backend's life
  /// What results depend on besides: the instruction set of the matrix products, as their library names it.
  virtual std::string instruction_set() const = 0;
  /// The queue of the device's operations as its libraries know it (cudaStream_t), in which they are done in
  /// order; none on the CPU.
  virtual void* stream() const { return nullptr; }
  /// Why products of bf16 operands would be slower here than those of float32; empty: they are not.
  virtual std::string why_slow_in_bf16() const { return {}; }
  virtual std::unique_ptr<Timer> make_timer();
  virtual std::unique_ptr<Feed> make_feed();
  /// Whether there are recordings here.
  virtual bool records() const { return false; }
  /// Begins one; one at a time. Waits for the device. Throws UsageError where there are none.
  virtual std::unique_ptr<Recorder> record();

  // --- memory
  /// Uninitialised, from the backend's pool.
  virtual Tensor empty(Shape shape, DType dtype = DType::float32, int channel_block = 1) = 0;
  /// Bytes the pool has obtained from the system.
  virtual std::size_t reserved_bytes() const = 0;
  /// Channel block that convolutions of this many channels want for their activations (1: plain).
  virtual int preferred_channel_block(std::int64_t channels, DType dtype = DType::float32) const = 0;
  /// `from` in another channel block (1: plain NCHW); padding lanes zeroed. Equal shapes.
  virtual void to_layout(const Tensor& from, const Tensor& to) = 0;
  virtual void fill(const Tensor& out, double value) = 0;
  /// Any device to any device, equal shapes and layouts; converts between float32 and bfloat16, and float64
  /// to float32 (on one device). `from` may be changed once it returns.
  virtual void copy(const Tensor& from, const Tensor& to) = 0;
  /// Copies from the device to the CPU, without conversions: one read, so one wait, for all of them.
  virtual void read(std::span<const Transfer> transfers);
  /// y = scale * uint8 x + shift per channel c of [N, C, H, W]: images to floats. scale, shift: float32 [C].
  virtual void normalize_images(const Tensor& x, const Tensor& scale, const Tensor& shift,
                                const Tensor& y) = 0;

  // --- elementwise (any shape; equal layouts; padding lanes stay zero)
  virtual void add(const Tensor& a, const Tensor& b, const Tensor& y) = 0;  ///< y may be a
  /// y = x + row, x: [..., n] with n = row.numel() elements repeated (position embeddings, biases).
  virtual void add_rows(const Tensor& x, const Tensor& row, const Tensor& y) = 0;
  /// row (+)= sum of x's repetitions of row.numel() elements, in order.
  virtual void sum_rows(const Tensor& x, const Tensor& row, bool accumulate) = 0;
  virtual void scale(const Tensor& x, float factor, const Tensor& y) = 0;          ///< y may be x
  virtual void activation(Activation kind, const Tensor& x, const Tensor& y) = 0;  ///< y may be x
  /// dx may be dy.
  virtual void activation_backward(Activation kind, const Tensor& x, const Tensor& dy, const Tensor& dx) = 0;
  /// y = x / (1 - p) where uniform(key, element) >= p, else 0. Its own backward (pass dy as x). Elements are
  /// numbered in logical row-major order. 0 <= p < 1.
  virtual void dropout(const Tensor& x, float p, const RandomKey& key, const Tensor& y) = 0;

  // --- dense
  // x: [rows, in] (leading dimensions folded), weight: [out, in], bias: [out] or none, y: [rows, out].
  virtual void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) = 0;
  virtual void linear_backward_input(const Tensor& dy, const Tensor& weight, const Tensor& dx) = 0;
  virtual void linear_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                                      bool accumulate) = 0;
  // Products with what stands beside them: here one operation after the other, and in one where a device can.
  /// The same, and dbias (+)= the sum of dy's rows.
  virtual void linear_backward_weight_bias(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                                           const Tensor& dbias, bool accumulate);
  /// y = activation(before), before = x weight' + bias, which is kept for the backward; none: it is not.
  virtual void linear_activation(Activation kind, const Tensor& x, const Tensor& weight, const Tensor& bias,
                                 const Tensor& before, const Tensor& y);
  /// dx = (dy weight) * activation'(before): where a layer's x is the activation of `before`, the gradient of
  /// that. A ReLU's may be x itself.
  virtual void linear_backward_input_activation(Activation kind, const Tensor& dy, const Tensor& weight,
                                                const Tensor& before, const Tensor& dx);

  // --- convolution
  // x: [N, C, H, W], weight: [O, C / groups, kh, kw] plain, bias: [O] or none, y: [N, O, H', W'];
  // H' = (H + 2 padding - kh) / stride + 1. x and y in any channel block; preferred_channel_block is fast.
  virtual void convolution(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Convolution& geometry, const Tensor& y) = 0;
  virtual void convolution_backward_input(const Tensor& dy, const Tensor& weight, const Convolution& geometry,
                                          const Tensor& dx) = 0;
  virtual void convolution_backward_weight(const Tensor& x, const Tensor& dy, const Convolution& geometry,
                                           const Tensor& dweight, bool accumulate) = 0;
  /// dbias[o] (+)= sum of dy over batch and places.
  virtual void channel_sums(const Tensor& dy, const Tensor& dbias, bool accumulate) = 0;

  // --- pooling
  /// winners: int32 of y's shape and layout: flat place (h * W + w) in x of each maximum (the first on a
  /// tie).
  virtual void max_pool(const Tensor& x, const Pool& geometry, const Tensor& y, const Tensor& winners) = 0;
  virtual void max_pool_backward(const Tensor& dy, const Tensor& winners, const Pool& geometry,
                                 const Tensor& dx) = 0;
  /// Padded places count as zeros in the mean (PyTorch's count_include_pad = True).
  virtual void average_pool(const Tensor& x, const Pool& geometry, const Tensor& y) = 0;
  virtual void average_pool_backward(const Tensor& dy, const Pool& geometry, const Tensor& dx) = 0;
  /// y: plain [N, C] (or [N, C, 1, 1]).
  virtual void global_average_pool(const Tensor& x, const Tensor& y) = 0;
  virtual void global_average_pool_backward(const Tensor& dy, const Tensor& dx) = 0;
  /// y: [N, C, H * scale, W * scale], nearest.
  virtual void upsample_nearest(const Tensor& x, int scale, const Tensor& y) = 0;
  virtual void upsample_nearest_backward(const Tensor& dy, int scale, const Tensor& dx) = 0;

  // --- normalisation
  // Batch norm is cut where ranks must meet: moments -> (sum over ranks) -> normalise; the same backward.
  // x: [N, C, H, W] or [N, C]; moments and sums: float64.
  /// moments [2, C]: per channel the sum of (x - centre) and of (x - centre)^2; centre: float32 [C].
  virtual void channel_moments(const Tensor& x, const Tensor& centre, const Tensor& moments) = 0;
  /// y = (x - mean[c]) * inv_std[c] * weight[c] + bias[c]; weight and bias may be none.
  virtual void batch_norm(const Tensor& x, const Tensor& mean, const Tensor& inv_std, const Tensor& weight,
                          const Tensor& bias, const Tensor& y) = 0;
  /// sums [2, C]: per channel the sum of dy and of dy * (x - mean) * inv_std. (They are dbias and dweight.)
  virtual void batch_norm_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                        const Tensor& inv_std, const Tensor& sums) = 0;
  /// Training: dx = weight inv_std (dy - sums[0] / count - xhat sums[1] / count), count = elements per
  /// channel that the sums are over: one float64. None or 0: statistics were constants (evaluation), dx =
  /// weight inv_std dy.
  virtual void batch_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                         const Tensor& inv_std, const Tensor& weight, const Tensor& sums,
                                         const Tensor& count, const Tensor& dx) = 0;
  // With the ReLU behind it, in as many passes over memory.
  /// y = max(0, batch_norm(x) + shortcut); shortcut may be none.
  virtual void batch_norm_relu(const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                               const Tensor& weight, const Tensor& bias, const Tensor& shortcut,
                               const Tensor& y) = 0;
  /// Without a shortcut: batch_norm_backward_sums and batch_norm_backward_input of what the ReLU lets through
  /// of dy, which they find from x.
  virtual void batch_norm_relu_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                             const Tensor& inv_std, const Tensor& weight, const Tensor& bias,
                                             const Tensor& sums) = 0;
  virtual void batch_norm_relu_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                              const Tensor& inv_std, const Tensor& weight, const Tensor& bias,
                                              const Tensor& sums, const Tensor& count, const Tensor& dx) = 0;
  /// gated = dy + beside where y > 0, else 0; beside may be none. It is the shortcut's gradient, and what
  /// batch_norm_backward_input goes on from. sums: batch_norm_backward_sums of it.
  virtual void batch_norm_gated_backward_sums(const Tensor& dy, const Tensor& beside, const Tensor& y,
                                              const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                              const Tensor& gated, const Tensor& sums) = 0;
  // Totals: float64 [2 C + 1], the moments of C channels, then the number of elements that a channel has.
  /// Whether the centre of these moments lies so far off that their squares hide the variance: then they must
  /// be taken anew about the mean. Only the CPU, whose parts are float32, says so; a GPU's are exact.
  virtual bool moments_lack_digits(const Tensor& total, float eps) = 0;
  /// mean and inv_std = 1 / sqrt(variance + eps), float32 [C], of moments about `centre`. Where there is no
  /// total, or it counts nothing: of the running mean, which the centre is then, and the running variance.
  virtual void batch_statistics(const Tensor& total, const Tensor& centre, const Tensor& running_var,
                                float eps, const Tensor& mean, const Tensor& inv_std) = 0;
  /// The same moments about another centre, in place; from, to: float32 [C].
  virtual void move_centre(const Tensor& total, const Tensor& from, const Tensor& to) = 0;
  /// running = (1 - momentum) running + momentum new, of moments about running_mean; the variance is the
  /// unbiased one. batches: one int64, which counts. A total that counts nothing changes nothing.
  virtual void update_running(const Tensor& total, float momentum, const Tensor& running_mean,
                              const Tensor& running_var, const Tensor& batches) = 0;
  /// Over the last dimension n; mean, inv_std: float32 [rows]; weight, bias: [n].
  virtual void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps,
                          const Tensor& y, const Tensor& mean, const Tensor& inv_std) = 0;
  /// The same of sum = a + b.
  virtual void add_layer_norm(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias,
                              float eps, const Tensor& sum, const Tensor& y, const Tensor& mean,
                              const Tensor& inv_std) = 0;
  /// dx = beside + the gradient; beside, which reached x another way, may be none. accumulate: of dweight and
  /// dbias.
  virtual void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                   const Tensor& mean, const Tensor& inv_std, const Tensor& beside,
                                   const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                                   bool accumulate) = 0;
  /// x: plain [N, C, H, W]; mean, inv_std: float32 [N, groups]; weight, bias: [C].
  virtual void group_norm(const Tensor& x, int groups, const Tensor& weight, const Tensor& bias, float eps,
                          const Tensor& y, const Tensor& mean, const Tensor& inv_std) = 0;
  virtual void group_norm_backward(const Tensor& dy, const Tensor& x, int groups, const Tensor& weight,
                                   const Tensor& mean, const Tensor& inv_std, const Tensor& dx,
                                   const Tensor& dweight, const Tensor& dbias, bool accumulate) = 0;

  // --- attention
  // q, k, v: columns of [batch, time, *] matrices, `heads` heads of width channels / heads side by side;
  // scale 1 / sqrt(width). y: [batch, time, channels]. saved: what the backward needs beside y, float32 of
  // the shape below: the logarithms of the rows' sums of exponentials, [batch, heads, time], or, for short
  // rows on the CPU, the probabilities [batch, heads, time, time].
  virtual Shape attention_saved_shape(std::int64_t batch, int heads, std::int64_t time) const = 0;
  virtual void attention(const Columns& q, const Columns& k, const Columns& v, int heads, bool causal,
                         const Tensor& y, const Tensor& saved) = 0;
  /// dq, dk, dv are overwritten (other columns of their matrices are not touched).
  virtual void attention_backward(const Tensor& dy, const Columns& q, const Columns& k, const Columns& v,
                                  int heads, bool causal, const Tensor& y, const Tensor& saved,
                                  const Columns& dq, const Columns& dk, const Columns& dv) = 0;

  // --- embedding, losses
  /// indices: int64, any shape; weight: [rows, width]; y: [indices..., width]. An index outside throws
  /// DataError with its value.
  virtual void embedding(const Tensor& indices, const Tensor& weight, const Tensor& y) = 0;
  /// dweight rows are summed in the order of the indices; without accumulate the whole of dweight is zeroed
  /// first.
  virtual void embedding_backward(const Tensor& dy, const Tensor& indices, const Tensor& dweight,
                                  bool accumulate) = 0;
  // A loss's total: float64 [2], a WeightedSum. A backward's factor: one float32.
  /// logits: [rows, classes], targets: int64 [rows]. The sum of losses, and the number of rows counted (not
  /// ignored). log_sum_exp: float32 [rows], for the backward. A target outside throws DataError with row and
  /// value.
  virtual void cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropy& options,
                             const Tensor& log_sum_exp, const Tensor& total) = 0;
  /// dlogits = factor * d(sum)/d(logits); may be the logits themselves.
  virtual void cross_entropy_backward(const Tensor& logits, const Tensor& targets,
                                      const CrossEntropy& options, const Tensor& log_sum_exp,
                                      const Tensor& factor, const Tensor& dlogits) = 0;
  /// correct: one int64, the rows whose largest logit (the first on a tie) is the target.
  virtual void count_correct(const Tensor& logits, const Tensor& targets, const Tensor& correct) = 0;
  /// Sum of squared differences, weight = elements.
  virtual void squared_error(const Tensor& x, const Tensor& target, const Tensor& total) = 0;
  /// dx = factor * 2 (x - target).
  virtual void squared_error_backward(const Tensor& x, const Tensor& target, const Tensor& factor,
                                      const Tensor& dx) = 0;

  // --- gradients and optimizers
  /// into += x over raw float32 or float64 memory: one inner node of the reduction tree. Float64 is rounded
  /// first where it is added to float32.
  virtual void accumulate(const Tensor& into, const Tensor& x) = 0;
  /// Float64 sum of squares over consecutive 4096-element blocks of x's plain elements; blocks: float64, one
  /// per block.
  virtual void block_sums_of_squares(const Tensor& x, const Tensor& blocks) = 0;
  /// One AdamW step (Loshchilov, Hutter 2019; PyTorch's order of operations) of each parameter and the EMA
  /// updates of its new value, in one pass.
  virtual void adamw(std::span<const AdamWUpdate> updates) = 0;
  /// One SGD step (PyTorch's momentum) of each parameter, and its EMA updates.
  virtual void sgd(std::span<const SgdUpdate> updates) = 0;
  /// average = decay * average + (1 - decay) * value.
  virtual void ema(const Tensor& value, const EmaTarget& target) = 0;
};

/// The CPU backend; every operation uses `threads` threads (the caller is one), denormals flushed on each.
/// Belongs to one calling thread at a time.
std::unique_ptr<Backend> make_cpu_backend(int threads = 1);
/// The backend of a GPU. Throws UsageError saying so where Lockstep was built without CUDA, or there is no
/// such GPU.
std::unique_ptr<Backend> make_cuda_backend(int index);

/// By device.
std::unique_ptr<Backend> make_backend(Device device, int threads = 1);

}  // namespace lockstep::kernels
