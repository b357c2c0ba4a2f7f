// The backend of one GPU: cuBLASLt for products, cuDNN for convolutions and attention in bf16, own kernels
// for the rest.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/memory.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

class Matmul;          // matmul_plan.h
class Convolutions;    // convolution_plan.h
class FlashAttention;  // attention_plan.h
struct CudnnConvolution;

/// Asks for work on one stream, in order, and never waits but in reads. One file of this folder per subject
/// defines its overrides; the kernels themselves are in the .cu files.
class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int index);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  // cuda_backend.cpp
  Device device() const override { return Device::cuda(index_); }
  int threads() const override { return 1; }
  std::string instruction_set() const override;
  void* stream() const override { return pool_.stream(); }
  std::unique_ptr<Timer> make_timer() override;
  std::unique_ptr<Feed> make_feed() override;
  bool records() const override { return true; }
  std::unique_ptr<Recorder> record() override;
  Tensor empty(Shape shape, DType dtype, int channel_block) override;
  std::size_t reserved_bytes() const override { return pool_.reserved_bytes(); }

  // layout.cpp
  int preferred_channel_block(std::int64_t channels, DType dtype) const override;
  void to_layout(const Tensor& from, const Tensor& to) override;
  void normalize_images(const Tensor& x, const Tensor& scale, const Tensor& shift, const Tensor& y) override;

  // elementwise.cpp
  void fill(const Tensor& out, double value) override;
  void copy(const Tensor& from, const Tensor& to) override;
  void read(std::span<const Transfer> transfers) override;
  void add(const Tensor& a, const Tensor& b, const Tensor& y) override;
  void add_rows(const Tensor& x, const Tensor& row, const Tensor& y) override;
  void sum_rows(const Tensor& x, const Tensor& row, bool accumulate) override;
  void scale(const Tensor& x, float factor, const Tensor& y) override;
  void activation(Activation kind, const Tensor& x, const Tensor& y) override;
  void activation_backward(Activation kind, const Tensor& x, const Tensor& dy, const Tensor& dx) override;
  void dropout(const Tensor& x, float p, const RandomKey& key, const Tensor& y) override;

  // matmul.cpp
  void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) override;
  void linear_backward_input(const Tensor& dy, const Tensor& weight, const Tensor& dx) override;
  void linear_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                              bool accumulate) override;
  void linear_backward_weight_bias(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                                   const Tensor& dbias, bool accumulate) override;
  void linear_activation(Activation kind, const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const Tensor& before, const Tensor& y) override;
  void linear_backward_input_activation(Activation kind, const Tensor& dy, const Tensor& weight,
                                        const Tensor& before, const Tensor& dx) override;

  // convolution.cpp
  void convolution(const Tensor& x, const Tensor& weight, const Tensor& bias, const Convolution& geometry,
                   const Tensor& y) override;
  void convolution_backward_input(const Tensor& dy, const Tensor& weight, const Convolution& geometry,
                                  const Tensor& dx) override;
  void convolution_backward_weight(const Tensor& x, const Tensor& dy, const Convolution& geometry,
                                   const Tensor& dweight, bool accumulate) override;

  // pooling.cpp
  void max_pool(const Tensor& x, const Pool& geometry, const Tensor& y, const Tensor& winners) override;
  void max_pool_backward(const Tensor& dy, const Tensor& winners, const Pool& geometry,
                         const Tensor& dx) override;
  void average_pool(const Tensor& x, const Pool& geometry, const Tensor& y) override;
  void average_pool_backward(const Tensor& dy, const Pool& geometry, const Tensor& dx) override;
  void global_average_pool(const Tensor& x, const Tensor& y) override;
  void global_average_pool_backward(const Tensor& dy, const Tensor& dx) override;
  void upsample_nearest(const Tensor& x, int scale, const Tensor& y) override;
  void upsample_nearest_backward(const Tensor& dy, int scale, const Tensor& dx) override;

  // batch_norm.cpp
  void channel_sums(const Tensor& dy, const Tensor& dbias, bool accumulate) override;
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
  bool moments_lack_digits(const Tensor& total, float eps) override;
  void batch_statistics(const Tensor& total, const Tensor& centre, const Tensor& running_var, float eps,
                        const Tensor& mean, const Tensor& inv_std) override;
  void move_centre(const Tensor& total, const Tensor& from, const Tensor& to) override;
  void update_running(const Tensor& total, float momentum, const Tensor& running_mean,
                      const Tensor& running_var, const Tensor& batches) override;

  // norms.cpp
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

  // optimizer.cpp
  void accumulate(const Tensor& into, const Tensor& x) override;
  void block_sums_of_squares(const Tensor& x, const Tensor& blocks) override;
  void adamw(std::span<const AdamWUpdate> updates) override;
  void sgd(std::span<const SgdUpdate> updates) override;
  void ema(const Tensor& value, const EmaTarget& target) override;

 private:
  /// The operations whose data is checked, as DataFault numbers them.
  enum Checked : int { checked_embedding, checked_cross_entropy };

  /// linear_activation's by an epilogue; false where there is none.
  bool gelu_of_product(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before,
                       const Tensor& y);
  /// Makes this the calling thread's device.
  Launch launch() const;
  /// Throws if a recording is under way: what it is about could not be done again as it stands.
  void refuse_in_recording(const char* what) const;
  /// Working memory from the pool, free again for later work when it goes out of scope.
  Tensor scratch(std::int64_t elements, DType dtype = DType::float32);
  /// `tensor` itself, or its elements converted.
  Tensor in_type(const Tensor& tensor, DType dtype);
  /// `tensor` itself, or its elements in the other layout.
  Tensor in_layout(const Tensor& tensor, bool channels_last);
  /// Memory in that layout for what `tensor` is to hold: its own if it is so.
  Tensor room_in_layout(const Tensor& tensor, bool channels_last);
  /// A convolution's weights in the activations' type and layout.
  Tensor packed_weight(const Tensor& weight, DType dtype, bool channels_last);
  Convolutions& convolutions();
  FlashAttention& flash_attention();
  /// Of the averages that do not fit into an optimizer's pass.
  void average_rest(const Tensor& value, std::span<const EmaTarget> averages);
  Tensor workspace_for(const CudnnConvolution& problem);

  int index_;
  int multiprocessors_ = 1;
  std::string instruction_set_;
  StreamPool pool_;
  bool recording_ = false;
  Upload upload_;
  Download download_;
  std::vector<Download::Part> downloads_;  // of one read
  Tensor fault_;                           // a DataFault
  std::vector<AdamWEntry> adamw_entries_;  // of one call
  std::vector<SgdEntry> sgd_entries_;
  std::unique_ptr<Matmul> matmul_;
  std::unique_ptr<Convolutions> convolutions_;       // made at the first convolution
  std::unique_ptr<FlashAttention> flash_attention_;  // made at the first attention in bf16
};

}  // namespace lockstep::kernels
