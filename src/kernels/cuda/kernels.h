// The kernels of this folder's .cu files as functions: plain pointers on the device, sizes, and where to run.
// Shapes have been checked; element types are, where they are arguments. Nothing here waits or allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/launch.h"
#include "lockstep/base/random.h"
#include "lockstep/kernels/activation.h"

namespace lockstep::kernels {

/// An activation [N, C, places], plain, or with its channels last ([N, places, C]). What has no channels is
/// one image of one channel.
struct Image {
  std::int64_t images = 1, channels = 1, places = 1;
  bool channels_last = false;

  constexpr std::int64_t elements() const { return images * channels * places; }
};

/// A float64 per-channel sum of moments is folded from this many parts; so are sums over rows.
constexpr std::int64_t row_chunks(std::int64_t rows) {
  constexpr std::int64_t least_rows = 32, most_chunks = 512;
  const std::int64_t chunks = (rows + least_rows - 1) / least_rows;
  return chunks < most_chunks ? chunks : most_chunks;
}

// --- elementwise.cu, rows.cu, activation.cu, dropout.cu
void launch_fill(const Launch& on, DType dtype, void* to, std::int64_t count, double value);
/// False where there is no such conversion.
bool launch_convert(const Launch& on, DType from_type, const void* from, DType to_type, void* to,
                    std::int64_t count);
void launch_add(const Launch& on, DType dtype, const void* a, const void* b, void* y, std::int64_t count);
void launch_scale(const Launch& on, DType dtype, const void* x, float factor, void* y, std::int64_t count);
/// False where these types are not added.
bool launch_accumulate(const Launch& on, DType into_type, void* into, DType x_type, const void* x,
                       std::int64_t count);
void launch_add_rows(const Launch& on, DType dtype, const void* x, const float* row, void* y,
                     std::int64_t rows, std::int64_t width);
/// partial: row_chunks(rows) * width.
void launch_sum_rows(const Launch& on, DType dtype, const void* x, float* row, std::int64_t rows,
                     std::int64_t width, bool accumulate, float* partial);
void launch_activation(const Launch& on, Activation kind, DType dtype, const void* x, void* y,
                       std::int64_t count);
void launch_activation_backward(const Launch& on, Activation kind, DType dtype, const void* x, const void* dy,
                                void* dx, std::int64_t count);
void launch_dropout(const Launch& on, DType dtype, const void* x, const Image& image, float p,
                    const RandomKey& key, void* y);

// --- layout.cu
/// Each image's [rows, columns] becomes [columns, rows]. Float32 or bf16.
void launch_transpose(const Launch& on, DType dtype, const void* from, void* to, std::int64_t images,
                      std::int64_t rows, std::int64_t columns);
/// x: plain; image: y's.
void launch_normalize_images(const Launch& on, const std::uint8_t* x, const float* scale, const float* shift,
                             const Image& image, DType dtype, void* y);

// --- channel_sums.cu: partial is channel_chunks(image) * sums * channels doubles, of 1 or 2 sums
std::int64_t channel_chunks(const Image& image);
void launch_channel_sums(const Launch& on, DType dtype, const void* dy, const Image& image, double* partial,
                         float* dbias, bool accumulate);
void launch_channel_moments(const Launch& on, DType dtype, const void* x, const Image& image,
                            const float* centre, double* partial, double* moments);
void launch_batch_norm_backward_sums(const Launch& on, DType dtype, const void* dy, const void* x,
                                     const Image& image, const float* mean, const float* inv_std,
                                     double* partial, double* sums);

/// What normalises a channel; weight and bias may be null.
struct ChannelScale {
  const float *mean, *inv_std, *weight, *bias;
};
void launch_batch_norm_relu_backward_sums(const Launch& on, DType dtype, const void* dy, const void* x,
                                          const Image& image, const ChannelScale& by, double* partial,
                                          double* sums);
/// gated = dy + beside (which may be null) where y > 0, else 0.
struct GatedGradient {
  const void *dy, *beside, *y;
  void* gated;
};
void launch_batch_norm_gated_backward_sums(const Launch& on, DType dtype, const GatedGradient& gradient,
                                           const void* x, const Image& image, const float* mean,
                                           const float* inv_std, double* partial, double* sums);

// --- batch_norm.cu; weight, bias, count and shortcut may be null
void launch_batch_norm_relu(const Launch& on, DType dtype, const void* x, const Image& image,
                            const ChannelScale& by, const void* shortcut, void* y);
void launch_batch_norm_relu_backward_input(const Launch& on, DType dtype, const void* dy, const void* x,
                                           const Image& image, const ChannelScale& by, const double* sums,
                                           const double* count, void* dx);
void launch_batch_norm(const Launch& on, DType dtype, const void* x, const Image& image, const float* mean,
                       const float* inv_std, const float* weight, const float* bias, void* y);
void launch_batch_norm_backward_input(const Launch& on, DType dtype, const void* dy, const void* x,
                                      const Image& image, const float* mean, const float* inv_std,
                                      const float* weight, const double* sums, const double* count, void* dx);

/// y += bias of its channel.
void launch_add_channels(const Launch& on, DType dtype, const Image& image, const float* bias, void* y);

// --- batch_statistics.cu; total: moments [2 C], then their count
/// total may be null.
void launch_batch_statistics(const Launch& on, const double* total, std::int64_t channels,
                             const float* centre, const float* running_var, float eps, float* mean,
                             float* inv_std);
void launch_move_centre(const Launch& on, double* total, std::int64_t channels, const float* from,
                        const float* to);
void launch_update_running(const Launch& on, const double* total, std::int64_t channels, float momentum,
                           float* running_mean, float* running_var, std::int64_t* batches);

// --- layer_norm.cu, group_norm.cu
/// Of x or, where there is an addend, of sum = x + addend; addend and sum may be null.
void launch_layer_norm(const Launch& on, DType dtype, const void* x, const void* addend, void* sum,
                       std::int64_t rows, std::int64_t width, const float* weight, const float* bias,
                       float eps, void* y, float* mean, float* inv_std);
/// partial: 2 * row_chunks(rows) * width. dx: beside, which may be null, is added.
void launch_layer_norm_backward(const Launch& on, DType dtype, const void* dy, const void* x,
                                std::int64_t rows, std::int64_t width, const float* weight, const float* mean,
                                const float* inv_std, const void* beside, void* dx, float* dweight,
                                float* dbias, bool accumulate, float* partial);
/// x: plain [images, groups * group_channels, places].
struct Groups {
  std::int64_t images, groups, group_channels, places;

  constexpr std::int64_t channels() const { return groups * group_channels; }
  constexpr std::int64_t group_elements() const { return group_channels * places; }
};
void launch_group_norm(const Launch& on, DType dtype, const void* x, const Groups& groups,
                       const float* weight, const float* bias, float eps, void* y, float* mean,
                       float* inv_std);
/// sums: 2 * images * channels floats.
void launch_group_norm_backward(const Launch& on, DType dtype, const void* dy, const void* x,
                                const Groups& groups, const float* weight, const float* mean,
                                const float* inv_std, void* dx, float* dweight, float* dbias, bool accumulate,
                                float* sums);

// --- pooling.cu, resampling.cu
/// From [.., height, width] to [.., out_height, out_width], each image's channels alike.
struct PoolSizes {
  std::int64_t images, channels, height, width, out_height, out_width;
  int kernel, stride, padding;
  bool channels_last;
};
void launch_max_pool(const Launch& on, DType dtype, const void* x, const PoolSizes& sizes, void* y,
                     std::int32_t* winners);
void launch_max_pool_backward(const Launch& on, DType dtype, const void* dy, const std::int32_t* winners,
                              const PoolSizes& sizes, void* dx);
void launch_average_pool(const Launch& on, DType dtype, const void* x, const PoolSizes& sizes, void* y);
void launch_average_pool_backward(const Launch& on, DType dtype, const void* dy, const PoolSizes& sizes,
                                  void* dx);
void launch_global_average_pool(const Launch& on, DType dtype, const void* x, const Image& image, void* y);
void launch_global_average_pool_backward(const Launch& on, DType dtype, const void* dy, const Image& image,
                                         void* dx);
/// height, width: of the small side; image: of the small side, too.
void launch_upsample(const Launch& on, DType dtype, const void* x, const Image& image, std::int64_t width,
                     int scale, void* y);
void launch_upsample_backward(const Launch& on, DType dtype, const void* dy, const Image& image,
                              std::int64_t width, int scale, void* dx);

// --- attention.cu
/// Head h of image b, row t, lies at matrix + (b * time + t) * stride + h * width.
struct AttentionProblem {
  std::int64_t batch, heads, time, width;
  bool causal;
};
struct HeadMatrix {
  void* data;
  std::int64_t stride;
};
/// width <= 256. log_sum_exp: [batch, heads, time].
void launch_attention(const Launch& on, DType dtype, const AttentionProblem& problem, const HeadMatrix& q,
                      const HeadMatrix& k, const HeadMatrix& v, const HeadMatrix& y, float* log_sum_exp);
/// delta: room like log_sum_exp's.
void launch_attention_backward(const Launch& on, DType dtype, const AttentionProblem& problem,
                               const HeadMatrix& dy, const HeadMatrix& q, const HeadMatrix& k,
                               const HeadMatrix& v, const HeadMatrix& y, const float* log_sum_exp,
                               const HeadMatrix& dq, const HeadMatrix& dk, const HeadMatrix& dv,
                               float* delta);

// --- embedding.cu, data_check.cu
/// What was wrong with data, for the next read to tell.
struct DataFault {
  enum Kind : std::int32_t { none, index_outside, target_outside };
  std::int32_t kind = none;
  std::int32_t operation = 0;  ///< as the caller numbers them
  std::int64_t value = 0, number = 0, bound = 0;
};
/// Writes the first value (in order) outside [0, bound) that is not `ignored` to `fault`, if that holds none.
void launch_check_data(const Launch& on, const std::int64_t* values, std::int64_t count, std::int64_t bound,
                       const std::int64_t* ignored, DataFault::Kind kind, int operation, DataFault* fault);
/// Indices outside give rows of zeros, and no gradient.
void launch_embedding(const Launch& on, const std::int64_t* indices, std::int64_t uses, const float* table,
                      std::int64_t rows, std::int64_t width, DType dtype, void* y);
/// Bytes of working memory, for as many indices.
std::size_t embedding_backward_bytes(std::int64_t uses, int device);
void launch_embedding_backward(const Launch& on, DType dtype, const void* dy, const std::int64_t* indices,
                               std::int64_t uses, std::int64_t rows, std::int64_t width, float* dweight,
                               bool accumulate, void* work, std::size_t work_bytes);

// --- loss.cu; targets that are neither ignored nor classes count as ignored
struct LossRows {
  std::int64_t rows, classes, ignore_index;
  float label_smoothing;
};
/// losses: rows doubles.
void launch_cross_entropy(const Launch& on, DType dtype, const void* logits, const std::int64_t* targets,
                          const LossRows& sizes, float* log_sum_exp, double* losses, double* total);
void launch_cross_entropy_backward(const Launch& on, DType dtype, const void* logits,
                                   const std::int64_t* targets, const LossRows& sizes,
                                   const float* log_sum_exp, const float* factor, void* dlogits);
/// hits: rows int32.
void launch_count_correct(const Launch& on, DType dtype, const void* logits, const std::int64_t* targets,
                          std::int64_t rows, std::int64_t classes, std::int32_t* hits, std::int64_t* correct);
/// sums: one a block of 4096 elements.
void launch_squared_error(const Launch& on, DType dtype, const void* x, const void* target,
                          std::int64_t count, double* sums, double* total);
void launch_squared_error_backward(const Launch& on, DType dtype, const void* x, const void* target,
                                   std::int64_t count, const float* factor, void* dx);

// --- reduction.cu
void launch_block_sums_of_squares(const Launch& on, const float* x, std::int64_t count, double* blocks);

// --- optimizer.cu
inline constexpr int most_averages = 4;  ///< of one pass; more take another
struct AdamWFactors {
  float decay, gradient, beta1, beta2, fresh1, fresh2, correction2, eps, rate;
};
enum class Momentum : std::int32_t { none, first, plain };
struct SgdFactors {
  float rate, momentum, decay, gradient;
  Momentum kind;
  bool nesterov;
};
/// One tensor of a launch.
template <class Factors>
struct UpdateEntry {
  Factors factors;
  std::int64_t count;
  float* value;
  const float* gradient;
  float *first, *second;  ///< exp_avg and exp_avg_sq, or momentum_buffer and none
  int averages;
  float* average[most_averages];
  float keep[most_averages], fresh[most_averages];
};
using AdamWEntry = UpdateEntry<AdamWFactors>;
using SgdEntry = UpdateEntry<SgdFactors>;
inline constexpr std::size_t most_entries = 96;  ///< of one launch: they travel as its arguments
void launch_adamw(const Launch& on, std::span<const AdamWEntry> entries);
void launch_sgd(const Launch& on, std::span<const SgdEntry> entries);
void launch_ema(const Launch& on, const float* value, float* average, float keep, float fresh,
                std::int64_t count);

}  // namespace lockstep::kernels
