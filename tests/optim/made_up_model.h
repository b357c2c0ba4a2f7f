// Parameters, buffers and gradients made up from a seed, as an optimizer sees a model after a backward.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/base/random.h"
#include "support/mentions.h"

namespace lockstep::test {

inline std::vector<float> values(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

/// A float32 tensor of normal draws: equal arguments, equal bits.
inline Tensor normal(Shape shape, std::uint64_t seed, std::string_view purpose, std::uint64_t step = 0) {
  Tensor tensor = Tensor::empty(shape);
  const Random random({.seed = seed, .purpose = purpose_of(purpose), .step = step});
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data<float>()[i] = random.normal(static_cast<std::uint64_t>(i));
  return tensor;
}

class MadeUpModel final : public GradientSource {
 public:
  explicit MadeUpModel(std::uint64_t seed = 1) : seed_(seed), backend_(kernels::make_cpu_backend()) {}

  /// Two matrices, two vectors and a frozen matrix, out of name order; one is longer than a block of the
  /// norm.
  static void fill_usual(MadeUpModel& model) {
    model.add("out.weight", {11, 3});
    model.add("hidden.weight", {71, 67});
    model.add("hidden.bias", {67});
    model.add("norm.scale", {5});
    model.add("embedding.weight", {7, 5}, false);
  }

  Param& add(const std::string& name, Shape shape, bool trainable = true) {
    Param& param = params_.emplace_back();
    param.name = name;
    param.value = normal(shape, seed_, "value " + name);
    param.trainable = trainable;
    pointers_.push_back(&param);
    return param;
  }
  Buffer& add_buffer(const std::string& name, Tensor value) {
    buffers_.push_back({.name = name, .value = std::move(value)});
    return buffers_.back();
  }

  /// Gradients of a step for all trainable parameters.
  void make_gradients(std::uint64_t step) {
    for (Param& param : params_)
      if (param.trainable)
        param.gradient = normal(param.value.shape(), seed_, "gradient " + param.name, step);
  }

  Param& operator[](const std::string& name) {
    for (Param& param : params_)
      if (param.name == name) return param;
    throw UsageError("the test has no parameter {}", name);
  }
  ModelState state() {
    ModelState state{.params = pointers_, .buffers = {}, .statistics = {}};
    for (Buffer& buffer : buffers_) state.buffers.push_back(&buffer);
    return state;
  }
  /// All parameters' values.
  std::vector<std::vector<float>> all_values() const {
    std::vector<std::vector<float>> all;
    for (const Param& param : params_) all.push_back(values(param.value));
    return all;
  }
  void set_count(double count) { count_ = count; }
  /// From now on this rank owns parts. Collective, as is every step of an optimizer after it.
  void shard(comm::GradientTransport& transport) { partition_.emplace(params(), transport); }

  std::span<Param* const> params() const override { return pointers_; }
  double count() const override { return count_; }
  kernels::Backend& backend() const override { return *backend_; }
  const Partition* partition() const override { return partition_ ? &*partition_ : nullptr; }
  void updated(std::size_t param) override {
    if (!partition_) return;
    Tensor& value = pointers_[param]->value;
    const Partition::OwnedElements part{
        .param = param, .elements = partition_->part(param, value), .shape = value.shape()};
    value = partition_->gather({&part, 1})[0];
  }

 private:
  std::uint64_t seed_;
  std::unique_ptr<kernels::Backend> backend_;
  std::deque<Param> params_;
  std::deque<Buffer> buffers_;
  std::vector<Param*> pointers_;
  double count_ = 1;
  std::optional<Partition> partition_;
};

/// The usual model.
struct UsualModel {
  explicit UsualModel(std::uint64_t seed = 1) : model(seed) { MadeUpModel::fill_usual(model); }
  MadeUpModel model;
};

}  // namespace lockstep::test
