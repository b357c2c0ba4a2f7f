// The CPU's operations in float32: oneDNN for products and convolutions, plain vectorised loops for the rest.
// Those that gain by it take bf16 activations, too.
// mixed_backend.h makes them a backend for both types of activation.
#pragma once

#include <dnnl.hpp>
#include <memory>

#include "kernels/cpu/gemm.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

struct ConvolutionCache;  // convolution_plan.h

/// One file of this folder per subject defines its overrides. Overrides that call oneDNN begin with
/// prepare().
class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int threads);
  ~CpuBackend() override;
  CpuBackend(const CpuBackend&) = delete;
  CpuBackend& operator=(const CpuBackend&) = delete;

  // cpu_backend.cpp
  Device device() const override { return Device::cpu(); }
  int threads() const override { return threads_; }
  std::string instruction_set() const override;
  Tensor empty(Shape shape, DType dtype, int channel_block) override;
  std::size_t reserved_bytes() const override { return pool_.reserved_bytes(); }

  // layout.cpp
  int preferred_channel_block(std::int64_t channels, DType dtype) const override;
  void to_layout(const Tensor& from, const Tensor& to) override;
  void normalize_images(const Tensor& x, const Tensor& scale, const Tensor& shift, const Tensor& y) override;

  // elementwise.cpp
  void fill(const Tensor& out, double value) override;
  void copy(const Tensor& from, const Tensor& to) override;
  void add(const Tensor& a, const Tensor& b, const Tensor& y) override;
  void add_rows(const Tensor& x, const Tensor& row, const Tensor& y) override;
  void sum_rows(const Tensor& x, const Tensor& row, bool accumulate) override;
  void scale(const Tensor& x, float factor, const Tensor& y) override;

  // activation.cpp, dropout.cpp
  void activation(Activation kind, const Tensor& x, const Tensor& y) override;
  void activation_backward(Activation kind, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void dropout(const Tensor& x, float p, const RandomKey& key, const Tensor& y) override;

  // matmul.cpp
  void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) override;
  void linear_backward_input(const Tensor& dy, const Tensor& weight, const Tensor& dx) override;
  void linear_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                              bool accumulate) override;

  // convolution.cpp
  void convolution(const Tensor& x, const Tensor& weight, const Tensor& bias, const Convolution& geometry,
                   const Tensor& y) override;
  void convolution_backward_input(const Tensor& dy, const Tensor& weight, const Convolution& geometry,
                                  const Tensor& dx) override;
  void convolution_backward_weight(const Tensor& x, const Tensor& dy, const Convolution& geometry,
                                   const Tensor& dweight, bool accumulate) override;
  void channel_sums(const Tensor& dy, const Tensor& dbias, bool accumulate) override;

  // pooling.cpp
  void max_pool(const Tensor& x, const Pool& geometry, const Tensor& y, const Tensor& winners) override;
  void max_pool_backward(const Tensor& dy, const Tensor& winners, const Pool& geometry,
                         const Tensor& dx) override;
  void average_pool(const Tensor& x, const Pool& geometry, const Tensor& y) override;
  void average_pool_backward(const Tensor& dy, const Pool& geometry, const Tensor& dx) override;

  // resampling.cpp
  void global_average_pool(const Tensor& x, const Tensor& y) override;
  void global_average_pool_backward(const Tensor& dy, const Tensor& dx) override;
  void upsample_nearest(const Tensor& x, int scale, const Tensor& y) override;
  void upsample_nearest_backward(const Tensor& dy, int scale, const Tensor& dx) override;

  // batch_norm.cpp
  void channel_moments(const Tensor& x, const Tensor& centre, const Tensor& moments) override;
  void batch_norm(const Tensor& x, const Tensor& mean, const Tensor& inv_std, const Tensor& weight,
                  const Tensor& bias, const Tensor& y) override;
  void batch_norm_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                const Tensor& sums) override;
  void batch_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                 const Tensor& weight, const Tensor& sums, const Tensor& count,
                                 const Tensor& dx) override;
  void batch_norm_relu(const Tensor& x, const Tensor& mean, const Tensor& inv_std, const Tensor& weight,
                       const Tensor& bias, const Tensor& shortcut, const Tensor& y) override;
  void batch_norm_relu_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                     const Tensor& inv_std, const Tensor& weight, const Tensor& bias,
                                     const Tensor& sums) override;
  void batch_norm_relu_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                      const Tensor& inv_std, const Tensor& weight, const Tensor& bias,
                                      const Tensor& sums, const Tensor& count, const Tensor& dx) override;
  void batch_norm_gated_backward_sums(const Tensor& dy, const Tensor& beside, const Tensor& y,
                                      const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                      const Tensor& gated, const Tensor& sums) override;

  // batch_statistics.cpp
  bool moments_lack_digits(const Tensor& total, float eps) override;
  void batch_statistics(const Tensor& total, const Tensor& centre, const Tensor& running_var, float eps,
                        const Tensor& mean, const Tensor& inv_std) override;
  void move_centre(const Tensor& total, const Tensor& from, const Tensor& to) override;
  void update_running(const Tensor& total, float momentum, const Tensor& running_mean,
                      const Tensor& running_var, const Tensor& batches) override;

  // layer_norm.cpp, group_norm.cpp
  void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& y,
                  const Tensor& mean, const Tensor& inv_std) override;
  void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                           const Tensor& inv_std, const Tensor& beside, const Tensor& dx,
                           const Tensor& dweight, const Tensor& dbias, bool accumulate) override;
  void add_layer_norm(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias, float eps,
                      const Tensor& sum, const Tensor& y, const Tensor& mean, const Tensor& inv_std) override;
  void group_norm(const Tensor& x, int groups, const Tensor& weight, const Tensor& bias, float eps,
                  const Tensor& y, const Tensor& mean, const Tensor& inv_std) override;
  void group_norm_backward(const Tensor& dy, const Tensor& x, int groups, const Tensor& weight,
                           const Tensor& mean, const Tensor& inv_std, const Tensor& dx, const Tensor& dweight,
                           const Tensor& dbias, bool accumulate) override;

  // attention.cpp
  Shape attention_saved_shape(std::int64_t batch, int heads, std::int64_t time) const override;
  void attention(const Columns& q, const Columns& k, const Columns& v, int heads, bool causal,
                 const Tensor& y, const Tensor& saved) override;
  void attention_backward(const Tensor& dy, const Columns& q, const Columns& k, const Columns& v, int heads,
                          bool causal, const Tensor& y, const Tensor& saved, const Columns& dq,
                          const Columns& dk, const Columns& dv) override;

  // embedding.cpp, loss.cpp
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

  // reduction.cpp, optimizer.cpp
  void accumulate(const Tensor& into, const Tensor& x) override;
  void block_sums_of_squares(const Tensor& x, const Tensor& blocks) override;
  void adamw(std::span<const AdamWUpdate> updates) override;
  void sgd(std::span<const SgdUpdate> updates) override;
  void ema(const Tensor& value, const EmaTarget& target) override;

  /// Makes the calling thread's OpenMP regions, oneDNN's among them, use threads() threads, whatever the
  /// environment or another backend on this thread asked for.
  void prepare() const noexcept;

 private:
  /// Float32 (or other) working memory from the pool: uninitialised, 64-byte aligned, free again when it goes
  /// out of scope.
  Tensor scratch(std::int64_t elements, DType dtype = DType::float32);

  int threads_;
  MemoryPool pool_;
  Gemm gemm_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::shared_ptr<ConvolutionCache> convolutions_;  // made at the first convolution
};

}  // namespace lockstep::kernels
