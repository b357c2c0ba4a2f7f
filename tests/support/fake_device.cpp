#include "support/fake_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "support/closed_memory.h"

namespace lockstep::test {
namespace {

/// The same memory, as the CPU's operations take it.
Tensor as_cpu(const Tensor& tensor) {
  return tensor ? Tensor::view(tensor.raw(), tensor.shape(), tensor.dtype()) : tensor;
}

/// Copies at once, but insists on the order in which a device needs to be told.
class FakeFeed final : public kernels::Feed {
 public:
  explicit FakeFeed(std::shared_ptr<ClosedMemory> memory) : memory_(std::move(memory)) {}
  kernels::FeedRoom make_room(Shape shape, DType dtype) override {
    const Tensor host = Tensor::zeros(shape, dtype);
    return {.host = host, .device = Tensor::over(memory_->allocate(host.bytes()), shape, dtype)};
  }
  void begin_fill() override { filling_ = true; }
  void send(std::span<const kernels::FeedRoom> rooms) override {
    if (!filling_.exchange(false)) throw FailureError("feed: sent what was not begun");
    if (in_use_) throw FailureError("feed: sent over what is computed with");
    const Access access(*memory_);
    for (const kernels::FeedRoom& room : rooms) copy_elements(room.host, as_cpu(room.device));
  }
  void receive() override { in_use_ = true; }
  void release() override { in_use_ = false; }

 private:
  std::shared_ptr<ClosedMemory> memory_;
  std::atomic<bool> filling_ = false, in_use_ = false;
};

/// Knows a moment once a read has followed it, as a device that runs behind does.
class FakeTimer final : public kernels::Timer {
 public:
  explicit FakeTimer(std::shared_ptr<const std::atomic<int>> reads) : reads_(std::move(reads)) {}
  void mark(int which) override { moments_.at(static_cast<std::size_t>(which)) = {*reads_, monotonic_s()}; }
  double elapsed_ms(int from, int to) override {
    const Moment &begin = moments_.at(static_cast<std::size_t>(from)),
                 &end = moments_.at(static_cast<std::size_t>(to));
    if (std::max(begin.reads, end.reads) >= *reads_)
      throw FailureError("timer: asked before a read has followed the moment");
    return (end.time_s - begin.time_s) * 1e3;
  }

 private:
  struct Moment {
    int reads = 0;  ///< of the device, when it was marked
    double time_s = 0;
  };
  std::shared_ptr<const std::atomic<int>> reads_;
  std::array<Moment, most_moments> moments_;
};

class FakeDevice final : public kernels::Backend {
 public:
  Device device() const override { return Device::cuda(0); }
  int threads() const override { return 1; }
  std::string instruction_set() const override { return "fake"; }
  std::unique_ptr<kernels::Timer> make_timer() override { return std::make_unique<FakeTimer>(reads_); }
  std::unique_ptr<kernels::Feed> make_feed() override { return std::make_unique<FakeFeed>(memory_); }
  Tensor empty(Shape shape, DType dtype, int channel_block) override {
    return Tensor::over(
        memory_->allocate(static_cast<std::size_t>(stored_numel(shape, channel_block)) * bytes_of(dtype)),
        shape, dtype, channel_block);
  }
  std::size_t reserved_bytes() const override { return memory_->used_bytes(); }
  int preferred_channel_block(std::int64_t, DType) const override { return 1; }
  void to_layout(const Tensor&, const Tensor&) override { throw UsageError("the fake device is plain"); }
  void copy(const Tensor& from, const Tensor& to) override {
    move(from, to);
    if (to.device() == Device::cpu()) ++*reads_;
  }
  void read(std::span<const kernels::Transfer> transfers) override {
    for (const auto& [from, to] : transfers) move(here(from), to);
    ++*reads_;
  }
  void move(const Tensor& from, const Tensor& to) { cpu()->copy(as_cpu(from), as_cpu(to)); }
  int reads() const { return *reads_; }
  Shape attention_saved_shape(std::int64_t batch, int heads, std::int64_t time) const override {
    return cpu_->attention_saved_shape(batch, heads, time);
  }
  void adamw(std::span<const kernels::AdamWUpdate> updates) override {
    const Access access(*memory_);
    for (kernels::AdamWUpdate update : updates) {
      const std::vector<kernels::EmaTarget> ema = here(update.ema);
      for (Tensor* const tensor : {&update.value, &update.gradient, &update.exp_avg, &update.exp_avg_sq})
        *tensor = here(*tensor);
      update.ema = ema;
      cpu_->adamw({&update, 1});
    }
  }
  void sgd(std::span<const kernels::SgdUpdate> updates) override {
    const Access access(*memory_);
    for (kernels::SgdUpdate update : updates) {
      const std::vector<kernels::EmaTarget> ema = here(update.ema);
      for (Tensor* const tensor : {&update.value, &update.gradient, &update.momentum_buffer})
        *tensor = here(*tensor);
      update.ema = ema;
      cpu_->sgd({&update, 1});
    }
  }
  void ema(const Tensor& value, const kernels::EmaTarget& target) override {
    cpu()->ema(here(value), {.average = here(target.average), .decay = target.decay});
  }

  void fill(const Tensor& out, double value) override { cpu()->fill(here(out), value); }
  void normalize_images(const Tensor& x, const Tensor& scale, const Tensor& shift, const Tensor& y) override {
    cpu()->normalize_images(here(x), here(scale), here(shift), here(y));
  }
  void add(const Tensor& a, const Tensor& b, const Tensor& y) override {
    cpu()->add(here(a), here(b), here(y));
  }
  void add_rows(const Tensor& x, const Tensor& row, const Tensor& y) override {
    cpu()->add_rows(here(x), here(row), here(y));
  }
  void sum_rows(const Tensor& x, const Tensor& row, bool accumulate) override {
    cpu()->sum_rows(here(x), here(row), accumulate);
  }
  void scale(const Tensor& x, float factor, const Tensor& y) override {
    cpu()->scale(here(x), factor, here(y));
  }
  void activation(kernels::Activation kind, const Tensor& x, const Tensor& y) override {
    cpu()->activation(kind, here(x), here(y));
  }
  void activation_backward(kernels::Activation kind, const Tensor& x, const Tensor& dy,
                           const Tensor& dx) override {
    cpu()->activation_backward(kind, here(x), here(dy), here(dx));
  }
  void dropout(const Tensor& x, float p, const RandomKey& key, const Tensor& y) override {
    cpu()->dropout(here(x), p, key, here(y));
  }
  void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) override {
    cpu()->linear(here(x), here(weight), here(bias), here(y));
  }
  void linear_backward_input(const Tensor& dy, const Tensor& weight, const Tensor& dx) override {
    cpu()->linear_backward_input(here(dy), here(weight), here(dx));
  }
  void linear_backward_weight(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                              bool accumulate) override {
    cpu()->linear_backward_weight(here(x), here(dy), here(dweight), accumulate);
  }
  void linear_backward_weight_bias(const Tensor& x, const Tensor& dy, const Tensor& dweight,
                                   const Tensor& dbias, bool accumulate) override {
    cpu()->linear_backward_weight_bias(here(x), here(dy), here(dweight), here(dbias), accumulate);
  }
  void linear_activation(kernels::Activation kind, const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const Tensor& before, const Tensor& y) override {
    cpu()->linear_activation(kind, here(x), here(weight), here(bias), here(before), here(y));
  }
  void linear_backward_input_activation(kernels::Activation kind, const Tensor& dy, const Tensor& weight,
                                        const Tensor& before, const Tensor& dx) override {
    cpu()->linear_backward_input_activation(kind, here(dy), here(weight), here(before), here(dx));
  }
  void convolution(const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const kernels::Convolution& geometry, const Tensor& y) override {
    cpu()->convolution(here(x), here(weight), here(bias), geometry, here(y));
  }
  void convolution_backward_input(const Tensor& dy, const Tensor& weight,
                                  const kernels::Convolution& geometry, const Tensor& dx) override {
    cpu()->convolution_backward_input(here(dy), here(weight), geometry, here(dx));
  }
  void convolution_backward_weight(const Tensor& x, const Tensor& dy, const kernels::Convolution& geometry,
                                   const Tensor& dweight, bool accumulate) override {
    cpu()->convolution_backward_weight(here(x), here(dy), geometry, here(dweight), accumulate);
  }
  void channel_sums(const Tensor& dy, const Tensor& dbias, bool accumulate) override {
    cpu()->channel_sums(here(dy), here(dbias), accumulate);
  }
  void max_pool(const Tensor& x, const kernels::Pool& geometry, const Tensor& y,
                const Tensor& winners) override {
    cpu()->max_pool(here(x), geometry, here(y), here(winners));
  }
  void max_pool_backward(const Tensor& dy, const Tensor& winners, const kernels::Pool& geometry,
                         const Tensor& dx) override {
    cpu()->max_pool_backward(here(dy), here(winners), geometry, here(dx));
  }
  void average_pool(const Tensor& x, const kernels::Pool& geometry, const Tensor& y) override {
    cpu()->average_pool(here(x), geometry, here(y));
  }
  void average_pool_backward(const Tensor& dy, const kernels::Pool& geometry, const Tensor& dx) override {
    cpu()->average_pool_backward(here(dy), geometry, here(dx));
  }
  void global_average_pool(const Tensor& x, const Tensor& y) override {
    cpu()->global_average_pool(here(x), here(y));
  }
  void global_average_pool_backward(const Tensor& dy, const Tensor& dx) override {
    cpu()->global_average_pool_backward(here(dy), here(dx));
  }
  void upsample_nearest(const Tensor& x, int scale, const Tensor& y) override {
    cpu()->upsample_nearest(here(x), scale, here(y));
  }
  void upsample_nearest_backward(const Tensor& dy, int scale, const Tensor& dx) override {
    cpu()->upsample_nearest_backward(here(dy), scale, here(dx));
  }
  void channel_moments(const Tensor& x, const Tensor& centre, const Tensor& moments) override {
    cpu()->channel_moments(here(x), here(centre), here(moments));
  }
  void batch_norm(const Tensor& x, const Tensor& mean, const Tensor& inv_std, const Tensor& weight,
                  const Tensor& bias, const Tensor& y) override {
    cpu()->batch_norm(here(x), here(mean), here(inv_std), here(weight), here(bias), here(y));
  }
  void batch_norm_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                const Tensor& sums) override {
    cpu()->batch_norm_backward_sums(here(dy), here(x), here(mean), here(inv_std), here(sums));
  }
  void batch_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                 const Tensor& weight, const Tensor& sums, const Tensor& count,
                                 const Tensor& dx) override {
    cpu()->batch_norm_backward_input(here(dy), here(x), here(mean), here(inv_std), here(weight), here(sums),
                                     here(count), here(dx));
  }
  void batch_norm_relu(const Tensor& x, const Tensor& mean, const Tensor& inv_std, const Tensor& weight,
                       const Tensor& bias, const Tensor& shortcut, const Tensor& y) override {
    cpu()->batch_norm_relu(here(x), here(mean), here(inv_std), here(weight), here(bias), here(shortcut),
                           here(y));
  }
  void batch_norm_relu_backward_sums(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                     const Tensor& inv_std, const Tensor& weight, const Tensor& bias,
                                     const Tensor& sums) override {
    cpu()->batch_norm_relu_backward_sums(here(dy), here(x), here(mean), here(inv_std), here(weight),
                                         here(bias), here(sums));
  }
  void batch_norm_relu_backward_input(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                      const Tensor& inv_std, const Tensor& weight, const Tensor& bias,
                                      const Tensor& sums, const Tensor& count, const Tensor& dx) override {
    cpu()->batch_norm_relu_backward_input(here(dy), here(x), here(mean), here(inv_std), here(weight),
                                          here(bias), here(sums), here(count), here(dx));
  }
  void batch_norm_gated_backward_sums(const Tensor& dy, const Tensor& beside, const Tensor& y,
                                      const Tensor& x, const Tensor& mean, const Tensor& inv_std,
                                      const Tensor& gated, const Tensor& sums) override {
    cpu()->batch_norm_gated_backward_sums(here(dy), here(beside), here(y), here(x), here(mean), here(inv_std),
                                          here(gated), here(sums));
  }
  bool moments_lack_digits(const Tensor& total, float eps) override {
    return cpu()->moments_lack_digits(here(total), eps);
  }
  void batch_statistics(const Tensor& total, const Tensor& centre, const Tensor& running_var, float eps,
                        const Tensor& mean, const Tensor& inv_std) override {
    cpu()->batch_statistics(here(total), here(centre), here(running_var), eps, here(mean), here(inv_std));
  }
  void move_centre(const Tensor& total, const Tensor& from, const Tensor& to) override {
    cpu()->move_centre(here(total), here(from), here(to));
  }
  void update_running(const Tensor& total, float momentum, const Tensor& running_mean,
                      const Tensor& running_var, const Tensor& batches) override {
    cpu()->update_running(here(total), momentum, here(running_mean), here(running_var), here(batches));
  }
  void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float eps, const Tensor& y,
                  const Tensor& mean, const Tensor& inv_std) override {
    cpu()->layer_norm(here(x), here(weight), here(bias), eps, here(y), here(mean), here(inv_std));
  }
  void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                           const Tensor& inv_std, const Tensor& beside, const Tensor& dx,
                           const Tensor& dweight, const Tensor& dbias, bool accumulate) override {
    cpu()->layer_norm_backward(here(dy), here(x), here(weight), here(mean), here(inv_std), here(beside),
                               here(dx), here(dweight), here(dbias), accumulate);
  }
  void add_layer_norm(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias, float eps,
                      const Tensor& sum, const Tensor& y, const Tensor& mean,
                      const Tensor& inv_std) override {
    cpu()->add_layer_norm(here(a), here(b), here(weight), here(bias), eps, here(sum), here(y), here(mean),
                          here(inv_std));
  }
  void group_norm(const Tensor& x, int groups, const Tensor& weight, const Tensor& bias, float eps,
                  const Tensor& y, const Tensor& mean, const Tensor& inv_std) override {
    cpu()->group_norm(here(x), groups, here(weight), here(bias), eps, here(y), here(mean), here(inv_std));
  }
  void group_norm_backward(const Tensor& dy, const Tensor& x, int groups, const Tensor& weight,
                           const Tensor& mean, const Tensor& inv_std, const Tensor& dx, const Tensor& dweight,
                           const Tensor& dbias, bool accumulate) override {
    cpu()->group_norm_backward(here(dy), here(x), groups, here(weight), here(mean), here(inv_std), here(dx),
                               here(dweight), here(dbias), accumulate);
  }
  void attention(const kernels::Columns& q, const kernels::Columns& k, const kernels::Columns& v, int heads,
                 bool causal, const Tensor& y, const Tensor& saved) override {
    cpu()->attention(here(q), here(k), here(v), heads, causal, here(y), here(saved));
  }
  void attention_backward(const Tensor& dy, const kernels::Columns& q, const kernels::Columns& k,
                          const kernels::Columns& v, int heads, bool causal, const Tensor& y,
                          const Tensor& saved, const kernels::Columns& dq, const kernels::Columns& dk,
                          const kernels::Columns& dv) override {
    cpu()->attention_backward(here(dy), here(q), here(k), here(v), heads, causal, here(y), here(saved),
                              here(dq), here(dk), here(dv));
  }
  void embedding(const Tensor& indices, const Tensor& weight, const Tensor& y) override {
    cpu()->embedding(here(indices), here(weight), here(y));
  }
  void embedding_backward(const Tensor& dy, const Tensor& indices, const Tensor& dweight,
                          bool accumulate) override {
    cpu()->embedding_backward(here(dy), here(indices), here(dweight), accumulate);
  }
  void cross_entropy(const Tensor& logits, const Tensor& targets, const kernels::CrossEntropy& options,
                     const Tensor& log_sum_exp, const Tensor& total) override {
    cpu()->cross_entropy(here(logits), here(targets), options, here(log_sum_exp), here(total));
  }
  void cross_entropy_backward(const Tensor& logits, const Tensor& targets,
                              const kernels::CrossEntropy& options, const Tensor& log_sum_exp,
                              const Tensor& factor, const Tensor& dlogits) override {
    cpu()->cross_entropy_backward(here(logits), here(targets), options, here(log_sum_exp), here(factor),
                                  here(dlogits));
  }
  void count_correct(const Tensor& logits, const Tensor& targets, const Tensor& correct) override {
    cpu()->count_correct(here(logits), here(targets), here(correct));
  }
  void squared_error(const Tensor& x, const Tensor& target, const Tensor& total) override {
    cpu()->squared_error(here(x), here(target), here(total));
  }
  void squared_error_backward(const Tensor& x, const Tensor& target, const Tensor& factor,
                              const Tensor& dx) override {
    cpu()->squared_error_backward(here(x), here(target), here(factor), here(dx));
  }
  void accumulate(const Tensor& into, const Tensor& x) override { cpu()->accumulate(here(into), here(x)); }
  void block_sums_of_squares(const Tensor& x, const Tensor& blocks) override {
    cpu()->block_sums_of_squares(here(x), here(blocks));
  }

 private:
  /// The CPU's operations, for one expression, in which the memory is open.
  class Opened {
   public:
    Opened(ClosedMemory& memory, kernels::Backend& cpu) : access_(memory), cpu_(cpu) {}
    kernels::Backend* operator->() const { return &cpu_; }

   private:
    Access access_;
    kernels::Backend& cpu_;
  };
  Opened cpu() { return {*memory_, *cpu_}; }

  Tensor here(const Tensor& tensor) const {
    if (tensor && tensor.device() != device())
      throw UsageError("the fake device was given a tensor on {}", to_string(tensor.device()));
    return as_cpu(tensor);
  }
  kernels::Columns here(const kernels::Columns& columns) const {
    return {here(columns.matrix), columns.first, columns.count};
  }
  std::vector<kernels::EmaTarget> here(std::span<const kernels::EmaTarget> targets) const {
    std::vector<kernels::EmaTarget> all;
    for (const kernels::EmaTarget& target : targets) all.push_back({here(target.average), target.decay});
    return all;
  }

  std::shared_ptr<ClosedMemory> memory_ = std::make_shared<ClosedMemory>();
  std::shared_ptr<std::atomic<int>> reads_ = std::make_shared<std::atomic<int>>(0);
  std::unique_ptr<kernels::Backend> cpu_ = kernels::make_cpu_backend();
};

}  // namespace

std::unique_ptr<kernels::Backend> make_fake_device() { return std::make_unique<FakeDevice>(); }
int reads_of(const kernels::Backend& fake_device) {
  return dynamic_cast<const FakeDevice&>(fake_device).reads();
}
void move_by_transport(kernels::Backend& fake_device, const Tensor& from, const Tensor& to) {
  dynamic_cast<FakeDevice&>(fake_device).move(from, to);
}

}  // namespace lockstep::test
