// The CPU backend for both types of activation. What is float32 goes straight to CpuBackend, and so does what
// reads and writes both types itself (stored.h): activations, batch norm, attention and sums of rows. For
// bf16 there are oneDNN's own products and convolutions where the processor has them (native_bfloat16.h). All
// else is computed by the float32 operation, on copies of its operands, and rounded to nearest even: in parts
// that fit the caches where elements, rows or images are independent, else as a whole. So each operation has
// one implementation, and its rounding is that of the contract.
#pragma once

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/float32_copies.h"
#include "kernels/cpu/native_bfloat16.h"

namespace lockstep::kernels {

class MixedBackend final : public Backend {
 public:
  explicit MixedBackend(int threads);

  Device device() const override { return floats_.device(); }
  int threads() const override { return floats_.threads(); }
  std::string instruction_set() const override { return floats_.instruction_set(); }
  std::string why_slow_in_bf16() const override;
  Tensor empty(Shape shape, DType dtype, int channel_block) override {
    return floats_.empty(shape, dtype, channel_block);
  }
  std::size_t reserved_bytes() const override { return floats_.reserved_bytes(); }
  int preferred_channel_block(std::int64_t channels, DType dtype) const override;
  void to_layout(const Tensor& from, const Tensor& to) override;
  void fill(const Tensor& out, double value) override { floats_.fill(out, value); }
  void copy(const Tensor& from, const Tensor& to) override { floats_.copy(from, to); }
  void normalize_images(const Tensor& x, const Tensor& scale, const Tensor& shift, const Tensor& y) override;

  void add(const Tensor& a, const Tensor& b, const Tensor& y) override { floats_.add(a, b, y); }
  void add_rows(const Tensor& x, const Tensor& row, const Tensor& y) override;
  void sum_rows(const Tensor& x, const Tensor& row, bool accumulate) override {
    floats_.sum_rows(x, row, accumulate);
  }
  void scale(const Tensor& x, float factor, const Tensor& y) override { floats_.scale(x, factor, y); }
  void activation(Activation kind, const Tensor& x, const Tensor& y) override {
    floats_.activation(kind, x, y);
  }
  void activation_backward(Activation kind, const Tensor& x, const Tensor& dy, const Tensor& dx) override {
    floats_.activation_backward(kind, x, dy, dx);
  }
  void dropout(const Tensor& x, float p, const RandomKey& key, const Tensor& y) override;

  void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) override;
  void linear_backward_input(const Tensor& dy, const Tensor& weight, const Tensor& dx) override;
  void linear_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                              bool accumulate) override;
  void convolution(const Tensor& x, const Tensor& weight, const Tensor& bias, const Convolution& geometry,
                   const Tensor& y) override;
  void convolution_backward_input(const Tensor& dy, const Tensor& weight, const Convolution& geometry,
                                  const Tensor& dx) override;
  void convolution_backward_weight(const Tensor& x, const Tensor& dy, const Convolution& geometry,
                                   const Tensor& dweight, bool accumulate) override;
  void channel_sums(const Tensor& dy, const Tensor& dbias, bool accumulate) override {
    floats_.channel_sums(dy, dbias, accumulate);
  }

  void max_pool(const Tensor& x, const Pool& geometry, const Tensor& y, const Tensor& winners) override;
  void max_pool_backward(const Tensor& dy, const Tensor& winners, const Pool& geometry,
                         const Tensor& dx) override;
  void average_pool(const Tensor& x, const Pool& geometry, const Tensor& y) override;
  void average_pool_backward(const Tensor& dy, const Pool& geometry, const Tensor& dx) override;
  void global_average_pool(const Tensor& x, const Tensor& y) override;
  void global_average_pool_backward(const Tensor& dy, const Tensor& dx) override;
  void upsample_nearest(const Tensor& x, int scale, const Tensor& y) override;
  void upsample_nearest_backward(const Tensor& dy, int scale, const Tensor& dx) override;

  void channel_moments(const Tensor& x, const Tensor& centre, const Tensor& moments) override {
    floats_.channel_moments(x, centre, moments);
  }
  void batch_norm(const Tensor& x, const Tensor& mean, const Tensor& inv_std, const Tensor& weight,
                  const Tensor& bias, const Tensor& y) override {
    floats_.batch_norm(x, mean, inv_std, weight, bias, y);
  }
  void batch_norm_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                const Tensor& sums) override {
    floats_.batch_norm_backward_sums(dy, x, mean, inv_std, sums);
  }
  void batch_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                 const Tensor& weight, const Tensor& sums, const Tensor& count,
                                 const Tensor& dx) override {
    floats_.batch_norm_backward_input(dy, x, mean, inv_std, weight, sums, count, dx);
  }
  void batch_norm_relu(const Tensor& x, const Tensor& mean, const Tensor& inv_std, const Tensor& weight,
                       const Tensor& bias, const Tensor& shortcut, const Tensor& y) override {
    floats_.batch_norm_relu(x, mean, inv_std, weight, bias, shortcut, y);
  }
  void batch_norm_relu_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                     const Tensor& inv_std, const Tensor& weight, const Tensor& bias,
                                     const Tensor& sums) override {
    floats_.batch_norm_relu_backward_sums(dy, x, mean, inv_std, weight, bias, sums);
  }
  void batch_norm_relu_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                      const Tensor& inv_std, const Tensor& weight, const Tensor& bias,
                                      const Tensor& sums, const Tensor& count, const Tensor& dx) override {
    floats_.batch_norm_relu_backward_input(dy, x, mean, inv_std, weight, bias, sums, count, dx);
  }
  void batch_norm_gated_backward_sums(const Tensor& dy, const Tensor& beside, const Tensor& y,
                                      const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                      const Tensor& gated, const Tensor& sums) override {
    floats_.batch_norm_gated_backward_sums(dy, beside, y, x, mean, inv_std, gated, sums);
  }
  bool moments_lack_digits(const Tensor& total, float eps) override {
    return floats_.moments_lack_digits(total, eps);
  }
  void batch_statistics(const Tensor& total, const Tensor& centre, const Tensor& running_var, float eps,
                        const Tensor& mean, const Tensor& inv_std) override {
    floats_.batch_statistics(total, centre, running_var, eps, mean, inv_std);
  }
  void move_centre(const Tensor& total, const Tensor& from, const Tensor& to) override {
    floats_.move_centre(total, from, to);
  }
  void update_running(const Tensor& total, float momentum, const Tensor& running_mean,
                      const Tensor& running_var, const Tensor& batches) override {
    floats_.update_running(total, momentum, running_mean, running_var, batches);
  }
  void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& y,
                  const Tensor& mean, const Tensor& inv_std) override;
  void add_layer_norm(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias, float eps,
                      const Tensor& sum, const Tensor& y, const Tensor& mean, const Tensor& inv_std) override;
  void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                           const Tensor& inv_std, const Tensor& beside, const Tensor& dx,
                           const Tensor& dweight, const Tensor& dbias, bool accumulate) override;
  void group_norm(const Tensor& x, int groups, const Tensor& weight, const Tensor& bias, float eps,
                  const Tensor& y, const Tensor& mean, const Tensor& inv_std) override;
  void group_norm_backward(const Tensor& dy, const Tensor& x, int groups, const Tensor& weight,
                           const Tensor& mean, const Tensor& inv_std, const Tensor& dx, const Tensor& dweight,
                           const Tensor& dbias, bool accumulate) override;

  Shape attention_saved_shape(std::int64_t batch, int heads, std::int64_t time) const override {
    return floats_.attention_saved_shape(batch, heads, time);
  }
  void attention(const Columns& q, const Columns& k, const Columns& v, int heads, bool causal,
                 const Tensor& y, const Tensor& saved) override {
    floats_.attention(q, k, v, heads, causal, y, saved);
  }
  void attention_backward(const Tensor& dy, const Columns& q, const Columns& k, const Columns& v, int heads,
                          bool causal, const Tensor& y, const Tensor& saved, const Columns& dq,
                          const Columns& dk, const Columns& dv) override {
    floats_.attention_backward(dy, q, k, v, heads, causal, y, saved, dq, dk, dv);
  }

  void embedding(const Tensor& indices, const Tensor& weight, const Tensor& y) override;
  void embedding_backward(const Tensor& dy, const Tensor& indices, const Tensor& dweight,
                          bool accumulate) override;
  void cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropy& options,
                     const Tensor& log_sum_exp, const Tensor& total) override;
  void cross_entropy_backward(const Tensor& logits, const Tensor& targets, const CrossEntropy& options,
                              const Tensor& log_sum_exp, const Tensor& factor,
                              const Tensor& dlogits) override;
  void count_correct(const Tensor& logits, const Tensor& targets, const Tensor& correct) override;
  void squared_error(const Tensor& x, const Tensor& target, const Tensor& total) override;
  void squared_error_backward(const Tensor& x, const Tensor& target, const Tensor& factor,
                              const Tensor& dx) override;

  void accumulate(const Tensor& into, const Tensor& x) override { floats_.accumulate(into, x); }
  void block_sums_of_squares(const Tensor& x, const Tensor& blocks) override {
    floats_.block_sums_of_squares(x, blocks);
  }
  void adamw(std::span<const AdamWUpdate> updates) override { floats_.adamw(updates); }
  void sgd(std::span<const SgdUpdate> updates) override { floats_.sgd(updates); }
  void ema(const Tensor& value, const EmaTarget& target) override { floats_.ema(value, target); }

 private:
  /// body(copies), then rounding.
  template <class Body>
  void by_copies(const Body& body);
  /// The same for operations on each slice of the first dimension: body(copies, slice, first), slice(tensor)
  /// being some slices of a tensor, a multiple of `unit` and so few that copies stay in the caches.
  template <class Body>
  void by_slices(const Tensor& like, std::int64_t unit, const Body& body);

  CpuBackend floats_;
  NativeBfloat16 native_;
};

}  // namespace lockstep::kernels
