// A backend that times another one, call by call.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "kernels/work.h"
#include "lockstep/kernels/profile.h"

namespace lockstep::kernels {

namespace {

class ProfiledBackend final : public Backend {
 public:
  ProfiledBackend(Backend& backend, Profile& profile) : inner_(backend), profile_(profile) {}

  Device device() const override { return inner_.device(); }
  int threads() const override { return inner_.threads(); }
  std::string instruction_set() const override { return inner_.instruction_set(); }
  void* stream() const override { return inner_.stream(); }
  std::string why_slow_in_bf16() const override { return inner_.why_slow_in_bf16(); }
  std::unique_ptr<Timer> make_timer() override { return inner_.make_timer(); }
  std::unique_ptr<Feed> make_feed() override { return inner_.make_feed(); }

  Tensor empty(Shape shape, DType dtype, int channel_block) override {
    return inner_.empty(shape, dtype, channel_block);
  }
  std::size_t reserved_bytes() const override { return inner_.reserved_bytes(); }
  int preferred_channel_block(std::int64_t channels, DType dtype) const override {
    return inner_.preferred_channel_block(channels, dtype);
  }
  void to_layout(const Tensor& from, const Tensor& to) override {
    time(
        "to_layout", [&] { inner_.to_layout(from, to); }, from, to);
  }
  void fill(const Tensor& out, double value) override {
    time(
        "fill", [&] { inner_.fill(out, value); }, out);
  }
  void copy(const Tensor& from, const Tensor& to) override {
    const std::size_t before = pending_.size();
    time(
        "copy", [&] { inner_.copy(from, to); }, from, to);
    // A read has waited for what was asked for before it, but not for the mark that follows it.
    if (to.device() != from.device() && to.device() == Device::cpu()) settle(before);
  }
  void read(std::span<const Transfer> transfers) override {
    const std::size_t before = pending_.size();
    time(
        "copy", [&] { inner_.read(transfers); }, transfers, transfers);
    if (device() != Device::cpu()) settle(before);
  }
  void normalize_images(const Tensor& x, const Tensor& scale, const Tensor& shift, const Tensor& y) override {
    time(
        "normalize_images", [&] { inner_.normalize_images(x, scale, shift, y); }, x, y);
  }

  void add(const Tensor& a, const Tensor& b, const Tensor& y) override {
    time(
        "add", [&] { inner_.add(a, b, y); }, a, b, y);
  }
  void add_rows(const Tensor& x, const Tensor& row, const Tensor& y) override {
    time(
        "add_rows", [&] { inner_.add_rows(x, row, y); }, x, row, y);
  }
  void sum_rows(const Tensor& x, const Tensor& row, bool accumulate) override {
    time(
        "sum_rows", [&] { inner_.sum_rows(x, row, accumulate); }, x, row);
  }
  void scale(const Tensor& x, float factor, const Tensor& y) override {
    time(
        "scale", [&] { inner_.scale(x, factor, y); }, x, y);
  }
  void activation(Activation kind, const Tensor& x, const Tensor& y) override {
    time(
        "activation", [&] { inner_.activation(kind, x, y); }, x, y);
  }
  void activation_backward(Activation kind, const Tensor& x, const Tensor& dy, const Tensor& dx) override {
    time(
        "activation_backward", [&] { inner_.activation_backward(kind, x, dy, dx); }, x, dy, dx);
  }
  void dropout(const Tensor& x, float p, const RandomKey& key, const Tensor& y) override {
    time(
        "dropout", [&] { inner_.dropout(x, p, key, y); }, x, y);
  }

  void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) override {
    time(
        dense("linear", x, weight.size(1), weight.size(0)), [&] { inner_.linear(x, weight, bias, y); }, x,
        weight, bias, y);
  }
  void linear_backward_input(const Tensor& dy, const Tensor& weight, const Tensor& dx) override {
    time(
        dense("linear_backward_input", dx, weight.size(1), weight.size(0)),
        [&] { inner_.linear_backward_input(dy, weight, dx); }, dy, weight, dx);
  }
  void linear_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                              bool accumulate) override {
    time(
        dense("linear_backward_weight", x, dweight.size(1), dweight.size(0)),
        [&] { inner_.linear_backward_weight(x, dy, dweight, accumulate); }, x, dy, dweight);
  }
  void linear_backward_weight_bias(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                                   const Tensor& dbias, bool accumulate) override {
    time(
        dense("linear_backward_weight_bias", x, dweight.size(1), dweight.size(0)),
        [&] { inner_.linear_backward_weight_bias(x, dy, dweight, dbias, accumulate); }, x, dy, dweight,
        dbias);
  }
  void linear_activation(Activation kind, const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const Tensor& before, const Tensor& y) override {
    time(
        dense("linear_activation", x, weight.size(1), weight.size(0)),
        [&] { inner_.linear_activation(kind, x, weight, bias, before, y); }, x, weight, bias, before, y);
  }
  void linear_backward_input_activation(Activation kind, const Tensor& dy, const Tensor& weight,
                                        const Tensor& before, const Tensor& dx) override {
    time(
        dense("linear_backward_input_activation", dx, weight.size(1), weight.size(0)),
        [&] { inner_.linear_backward_input_activation(kind, dy, weight, before, dx); }, dy, weight, before,
        dx);
  }

  void convolution(const Tensor& x, const Tensor& weight, const Tensor& bias, const Convolution& geometry,
                   const Tensor& y) override {
    time(
        convolving("convolution", x, weight.shape(), geometry, y),
        [&] { inner_.convolution(x, weight, bias, geometry, y); }, x, weight, bias, y);
  }
  void convolution_backward_input(const Tensor& dy, const Tensor& weight, const Convolution& geometry,
                                  const Tensor& dx) override {
    time(
        convolving("convolution_backward_input", dx, weight.shape(), geometry, dy),
        [&] { inner_.convolution_backward_input(dy, weight, geometry, dx); }, dy, weight, dx);
  }
  void convolution_backward_weight(const Tensor& x, const Tensor& dy, const Convolution& geometry,
                                   const Tensor& dweight, bool accumulate) override {
    time(
        convolving("convolution_backward_weight", x, dweight.shape(), geometry, dy),
        [&] { inner_.convolution_backward_weight(x, dy, geometry, dweight, accumulate); }, x, dy, dweight);
  }
  void channel_sums(const Tensor& dy, const Tensor& dbias, bool accumulate) override {
    time(
        "channel_sums", [&] { inner_.channel_sums(dy, dbias, accumulate); }, dy, dbias);
  }

  void max_pool(const Tensor& x, const Pool& geometry, const Tensor& y, const Tensor& winners) override {
    time(
        "max_pool", [&] { inner_.max_pool(x, geometry, y, winners); }, x, y, winners);
  }
  void max_pool_backward(const Tensor& dy, const Tensor& winners, const Pool& geometry,
                         const Tensor& dx) override {
    time(
        "max_pool_backward", [&] { inner_.max_pool_backward(dy, winners, geometry, dx); }, dy, winners, dx);
  }
  void average_pool(const Tensor& x, const Pool& geometry, const Tensor& y) override {
    time(
        "average_pool", [&] { inner_.average_pool(x, geometry, y); }, x, y);
  }
  void average_pool_backward(const Tensor& dy, const Pool& geometry, const Tensor& dx) override {
    time(
        "average_pool_backward", [&] { inner_.average_pool_backward(dy, geometry, dx); }, dy, dx);
  }
  void global_average_pool(const Tensor& x, const Tensor& y) override {
    time(
        "global_average_pool", [&] { inner_.global_average_pool(x, y); }, x, y);
  }
  void global_average_pool_backward(const Tensor& dy, const Tensor& dx) override {
    time(
        "global_average_pool_backward", [&] { inner_.global_average_pool_backward(dy, dx); }, dy, dx);
  }
  void upsample_nearest(const Tensor& x, int scale, const Tensor& y) override {
    time(
        "upsample_nearest", [&] { inner_.upsample_nearest(x, scale, y); }, x, y);
  }
  void upsample_nearest_backward(const Tensor& dy, int scale, const Tensor& dx) override {
    time(
        "upsample_nearest_backward", [&] { inner_.upsample_nearest_backward(dy, scale, dx); }, dy, dx);
  }

  void channel_moments(const Tensor& x, const Tensor& centre, const Tensor& moments) override {
    time(
        "channel_moments", [&] { inner_.channel_moments(x, centre, moments); }, x, moments);
  }
  void batch_norm(const Tensor& x, const Tensor& mean, const Tensor& inv_std, const Tensor& weight,
                  const Tensor& bias, const Tensor& y) override {
    time(
        "batch_norm", [&] { inner_.batch_norm(x, mean, inv_std, weight, bias, y); }, x, y);
  }
  void batch_norm_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                const Tensor& sums) override {
    time(
        "batch_norm_backward_sums", [&] { inner_.batch_norm_backward_sums(dy, x, mean, inv_std, sums); }, dy,
        x);
  }
  void batch_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                 const Tensor& weight, const Tensor& sums, const Tensor& count,
                                 const Tensor& dx) override {
    time(
        "batch_norm_backward_input",
        [&] { inner_.batch_norm_backward_input(dy, x, mean, inv_std, weight, sums, count, dx); }, dy, x, dx);
  }
  void batch_norm_relu(const Tensor& x, const Tensor& mean, const Tensor& inv_std, const Tensor& weight,
                       const Tensor& bias, const Tensor& shortcut, const Tensor& y) override {
    time(
        "batch_norm_relu", [&] { inner_.batch_norm_relu(x, mean, inv_std, weight, bias, shortcut, y); }, x,
        shortcut, y);
  }
  void batch_norm_relu_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                     const Tensor& inv_std, const Tensor& weight, const Tensor& bias,
                                     const Tensor& sums) override {
    time(
        "batch_norm_relu_backward_sums",
        [&] { inner_.batch_norm_relu_backward_sums(dy, x, mean, inv_std, weight, bias, sums); }, dy, x);
  }
  void batch_norm_relu_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                      const Tensor& inv_std, const Tensor& weight, const Tensor& bias,
                                      const Tensor& sums, const Tensor& count, const Tensor& dx) override {
    time(
        "batch_norm_relu_backward_input",
        [&] { inner_.batch_norm_relu_backward_input(dy, x, mean, inv_std, weight, bias, sums, count, dx); },
        dy, x, dx);
  }
  void batch_norm_gated_backward_sums(const Tensor& dy, const Tensor& beside, const Tensor& y,
                                      const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                      const Tensor& gated, const Tensor& sums) override {
    time(
        "batch_norm_gated_backward_sums",
        [&] { inner_.batch_norm_gated_backward_sums(dy, beside, y, x, mean, inv_std, gated, sums); }, dy,
        beside, y, x, gated);
  }
  bool moments_lack_digits(const Tensor& total, float eps) override {
    bool lack = false;
    time(
        "moments_lack_digits", [&] { lack = inner_.moments_lack_digits(total, eps); }, total);
    return lack;
  }
  void batch_statistics(const Tensor& total, const Tensor& centre, const Tensor& running_var, float eps,
                        const Tensor& mean, const Tensor& inv_std) override {
    time(
        "batch_statistics", [&] { inner_.batch_statistics(total, centre, running_var, eps, mean, inv_std); },
        total, centre, running_var, mean, inv_std);
  }
  void move_centre(const Tensor& total, const Tensor& from, const Tensor& to) override {
    time(
        "move_centre", [&] { inner_.move_centre(total, from, to); }, total, total, from, to);
  }
  void update_running(const Tensor& total, float momentum, const Tensor& running_mean,
                      const Tensor& running_var, const Tensor& batches) override {
    time(
        "update_running", [&] { inner_.update_running(total, momentum, running_mean, running_var, batches); },
        total, running_mean, running_mean, running_var, running_var);
  }
  void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& y,
                  const Tensor& mean, const Tensor& inv_std) override {
    time(
        "layer_norm", [&] { inner_.layer_norm(x, weight, bias, eps, y, mean, inv_std); }, x, weight, bias, y,
        mean, inv_std);
  }
  void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                           const Tensor& inv_std, const Tensor& beside, const Tensor& dx,
                           const Tensor& dweight, const Tensor& dbias, bool accumulate) override {
    time(
        "layer_norm_backward",
        [&] {
          inner_.layer_norm_backward(dy, x, weight, mean, inv_std, beside, dx, dweight, dbias, accumulate);
        },
        dy, x, weight, mean, inv_std, beside, dx, dweight, dbias);
  }
  void add_layer_norm(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias, float eps,
                      const Tensor& sum, const Tensor& y, const Tensor& mean,
                      const Tensor& inv_std) override {
    time(
        "add_layer_norm", [&] { inner_.add_layer_norm(a, b, weight, bias, eps, sum, y, mean, inv_std); }, a,
        b, weight, bias, sum, y, mean, inv_std);
  }
  void group_norm(const Tensor& x, int groups, const Tensor& weight, const Tensor& bias, float eps,
                  const Tensor& y, const Tensor& mean, const Tensor& inv_std) override {
    time(
        "group_norm", [&] { inner_.group_norm(x, groups, weight, bias, eps, y, mean, inv_std); }, x, y, mean,
        inv_std);
  }
  void group_norm_backward(const Tensor& dy, const Tensor& x, int groups, const Tensor& weight,
                           const Tensor& mean, const Tensor& inv_std, const Tensor& dx, const Tensor& dweight,
                           const Tensor& dbias, bool accumulate) override {
    time(
        "group_norm_backward",
        [&] {
          inner_.group_norm_backward(dy, x, groups, weight, mean, inv_std, dx, dweight, dbias, accumulate);
        },
        dy, x, mean, inv_std, dx);
  }

  Shape attention_saved_shape(std::int64_t batch, int heads, std::int64_t time) const override {
    return inner_.attention_saved_shape(batch, heads, time);
  }
  void attention(const Columns& q, const Columns& k, const Columns& v, int heads, bool causal,
                 const Tensor& y, const Tensor& saved) override {
    time(
        attending("attention", q, heads, causal, 2),
        [&] { inner_.attention(q, k, v, heads, causal, y, saved); }, q, k, v, y, saved);
  }
  void attention_backward(const Tensor& dy, const Columns& q, const Columns& k, const Columns& v, int heads,
                          bool causal, const Tensor& y, const Tensor& saved, const Columns& dq,
                          const Columns& dk, const Columns& dv) override {
    time(
        attending("attention_backward", q, heads, causal, 4),
        [&] { inner_.attention_backward(dy, q, k, v, heads, causal, y, saved, dq, dk, dv); }, dy, q, k, v,
        saved, dq, dk, dv);
  }

  void embedding(const Tensor& indices, const Tensor& weight, const Tensor& y) override {
    time(
        "embedding", [&] { inner_.embedding(indices, weight, y); }, indices, y, y);
  }
  void embedding_backward(const Tensor& dy, const Tensor& indices, const Tensor& dweight,
                          bool accumulate) override {
    time(
        "embedding_backward", [&] { inner_.embedding_backward(dy, indices, dweight, accumulate); }, dy,
        indices, dweight);
  }
  void cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropy& options,
                     const Tensor& log_sum_exp, const Tensor& total) override {
    time(
        "cross_entropy", [&] { inner_.cross_entropy(logits, targets, options, log_sum_exp, total); }, logits,
        targets, log_sum_exp);
  }
  void cross_entropy_backward(const Tensor& logits, const Tensor& targets, const CrossEntropy& options,
                              const Tensor& log_sum_exp, const Tensor& factor,
                              const Tensor& dlogits) override {
    time(
        "cross_entropy_backward",
        [&] { inner_.cross_entropy_backward(logits, targets, options, log_sum_exp, factor, dlogits); },
        logits, targets, log_sum_exp, dlogits);
  }
  void count_correct(const Tensor& logits, const Tensor& targets, const Tensor& correct) override {
    time(
        "count_correct", [&] { inner_.count_correct(logits, targets, correct); }, logits, targets);
  }
  void squared_error(const Tensor& x, const Tensor& target, const Tensor& total) override {
    time(
        "squared_error", [&] { inner_.squared_error(x, target, total); }, x, target);
  }
  void squared_error_backward(const Tensor& x, const Tensor& target, const Tensor& factor,
                              const Tensor& dx) override {
    time(
        "squared_error_backward", [&] { inner_.squared_error_backward(x, target, factor, dx); }, x, target,
        dx);
  }

  void accumulate(const Tensor& into, const Tensor& x) override {
    time(
        "accumulate", [&] { inner_.accumulate(into, x); }, into, into, x);
  }
  void block_sums_of_squares(const Tensor& x, const Tensor& blocks) override {
    time(
        "block_sums_of_squares", [&] { inner_.block_sums_of_squares(x, blocks); }, x);
  }
  // What is updated is read and written.
  void adamw(std::span<const AdamWUpdate> updates) override {
    time(
        "adamw", [&] { inner_.adamw(updates); }, updates, updates);
  }
  void sgd(std::span<const SgdUpdate> updates) override {
    time(
        "sgd", [&] { inner_.sgd(updates); }, updates, updates);
  }
  void ema(const Tensor& value, const EmaTarget& target) override {
    time(
        "ema", [&] { inner_.ema(value, target); }, value, target.average, target.average);
  }

 private:
  /// Spans are those of the device, which may do long afterwards what it is asked for here.
  template <class Call, class... Operands>
  void time(const Work& work, const Call& call, const Operands&... operands) {
    const std::size_t span = pending_.size();
    if (span == timers_.size()) timers_.push_back(inner_.make_timer());
    timers_[span]->mark(moment_of_start);
    call();
    timers_[span]->mark(moment_of_end);
    pending_.push_back({work, (bytes_in(operands) + ... + 0.0)});
    if (device() == Device::cpu()) settle(pending_.size());
  }
  template <class Call, class... Operands>
  void time(const char* name, const Call& call, const Operands&... operands) {
    time(Work{name}, call, operands...);
  }
  /// Adds the first `spans` of what is pending: to be called when the device has passed their ends.
  void settle(std::size_t spans) {
    for (std::size_t span = 0; span < spans; ++span) {
      const auto& [work, bytes] = pending_[span];
      profile_.add(work.name, timers_[span]->elapsed_ms(moment_of_start, moment_of_end), work.flops, bytes);
    }
    const auto over = static_cast<std::ptrdiff_t>(spans);
    pending_.erase(pending_.begin(), pending_.begin() + over);
    std::rotate(timers_.begin(), timers_.begin() + over, timers_.end());  // the others keep theirs
  }

  static constexpr int moment_of_start = 0, moment_of_end = 1;
  struct Span {
    Work work;
    double bytes = 0;
  };

  Backend& inner_;
  Profile& profile_;
  std::vector<std::unique_ptr<Timer>> timers_;  // of the pending spans, and more
  std::vector<Span> pending_;                   // not known to be over
};

}  // namespace

std::unique_ptr<Backend> make_profiled_backend(Backend& backend, Profile& profile) {
  return std::make_unique<ProfiledBackend>(backend, profile);
}

}  // namespace lockstep::kernels
