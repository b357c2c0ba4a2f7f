// An operation on a GPU against the same operation on the CPU.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "lockstep/kernels/backend.h"
#include "lockstep/ops/elementwise.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::test {

using Tensors = std::vector<Tensor>;

/// Random CPU tensors. The seed is LOCKSTEP_TEST_SEED or a fixed one, and printed with every failure.
class Draw {
 public:
  Draw() : generator_(seed()) {}
  static unsigned seed() {
    const char* given = std::getenv("LOCKSTEP_TEST_SEED");
    return given ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : 20251121u;
  }
  /// Values that bf16 holds exactly, so that both types compute on the same numbers.
  Tensor normal(Shape shape, float spread = 1) {
    const Tensor tensor = Tensor::empty(shape);
    std::normal_distribution<float> distribution(0, spread);
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      tensor.data<float>()[i] = from_bfloat16_bits(bfloat16_bits(distribution(generator_)));
    return tensor;
  }
  Tensor positive(Shape shape) {
    const Tensor tensor = normal(shape);
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      tensor.data<float>()[i] = std::fabs(tensor.data<float>()[i]) + 0.25f;
    return tensor;
  }
  Tensor indices(Shape shape, std::int64_t bound) {
    const Tensor tensor = Tensor::empty(shape, DType::int64);
    for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.data<std::int64_t>()[i] = below(bound);
    return tensor;
  }
  std::int64_t below(std::int64_t bound) {
    return std::uniform_int_distribution<std::int64_t>(0, bound - 1)(generator_);
  }

 private:
  std::mt19937 generator_;
};

/// What an output holds before: all of it must be overwritten.
inline Tensor unwritten(Shape shape, DType dtype = DType::float32) {
  const Tensor tensor = Tensor::zeros(shape, dtype);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    if (dtype == DType::float32) tensor.data<float>()[i] = std::numeric_limits<float>::quiet_NaN();
    if (dtype == DType::float64) tensor.data<double>()[i] = std::numeric_limits<double>::quiet_NaN();
    if (dtype == DType::int32) tensor.data<std::int32_t>()[i] = -7;
    if (dtype == DType::int64) tensor.data<std::int64_t>()[i] = -7;
  }
  return tensor;
}

inline Tensor copied(const Tensor& tensor) {
  const Tensor copy = Tensor::empty(tensor.shape(), tensor.dtype());
  copy_elements(tensor, copy);
  return copy;
}

inline Tensor scalar(float value) {
  const Tensor tensor = Tensor::empty({});
  *tensor.data<float>() = value;
  return tensor;
}

/// A CPU tensor that an operation reads or writes.
struct Operand {
  Operand(Tensor tensor, bool activation_) : value(std::move(tensor)), activation(activation_) {}
  Tensor value;
  bool activation;  ///< in every type and layout; others stay as they are
};
inline Operand activation(Tensor value) { return {std::move(value), true}; }
inline Operand fixed(Tensor value) { return {std::move(value), false}; }

/// How the GPU's activations are stored.
struct Form {
  DType dtype = DType::float32;
  bool channels_last = false;
};
inline constexpr Form plain_float{}, plain_bf16{DType::bfloat16, false}, last_float{DType::float32, true},
    last_bf16{DType::bfloat16, true};

class Twins {
 public:
  using Operation = std::function<void(kernels::Backend&, const Tensors& in, const Tensors& out)>;

  kernels::Backend& gpu() { return *gpu_; }
  kernels::Backend& cpu() { return *cpu_; }

  Tensor to_gpu(const Operand& operand, const Form& form = {}) {
    const Tensor& value = operand.value;
    if (!value) return {};
    const bool shaped = operand.activation && value.dtype() == DType::float32;
    const DType dtype = shaped ? form.dtype : value.dtype();
    const bool last =
        operand.activation && form.channels_last && (value.shape().rank() == 4 || value.shape().rank() == 5);
    if (last && value.dtype() == DType::int32)  // winners: only ever written
      return gpu_->empty(value.shape(), dtype, static_cast<int>(value.size(1)));
    const Tensor plain = gpu_->empty(value.shape(), dtype);
    gpu_->copy(value, plain);
    if (!last) return plain;
    const Tensor turned = gpu_->empty(value.shape(), dtype, static_cast<int>(value.size(1)));
    gpu_->run(ops::ToLayout{plain, turned});
    return turned;
  }

  /// Plain, in the CPU's types.
  Tensor to_cpu(const Tensor& tensor) {
    Tensor plain = tensor;
    if (tensor.channel_block() != 1) {
      plain = gpu_->empty(tensor.shape(), tensor.dtype());
      gpu_->run(ops::ToLayout{tensor, plain});
    }
    const Tensor back =
        Tensor::empty(tensor.shape(), tensor.dtype() == DType::bfloat16 ? DType::float32 : tensor.dtype());
    gpu_->copy(plain, back);
    return back;
  }

  /// Runs the operation on both, on the GPU twice: outputs must agree, and the GPU's have the same bits
  /// twice.
  void compare(const std::string& what, const std::vector<Operand>& inputs,
               const std::vector<Operand>& outputs, const Operation& operation,
               std::initializer_list<Form> forms = {plain_float, plain_bf16}) {
    Tensors in, wanted;
    for (const Operand& input : inputs) in.push_back(input.value);
    for (const Operand& output : outputs) wanted.push_back(copied(output.value));
    operation(*cpu_, in, wanted);
    for (const Form& form : forms) {
      BOOST_TEST_CONTEXT(what << " as " << to_string(form.dtype)
                              << (form.channels_last ? ", channels last" : "") << ", seed " << Draw::seed()) {
        const Tensors first = on_gpu(inputs, outputs, operation, form);
        const Tensors second = on_gpu(inputs, outputs, operation, form);
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          check(first[i], wanted[i], form, i);
          BOOST_TEST(
              (first[i].bytes() == 0 || std::memcmp(first[i].raw(), second[i].raw(), first[i].bytes()) == 0),
              "output " << i << " has other bits the second time");
        }
      }
    }
  }

 private:
  Tensors on_gpu(const std::vector<Operand>& inputs, const std::vector<Operand>& outputs,
                 const Operation& operation, const Form& form) {
    Tensors in, out, back;
    for (const Operand& input : inputs) in.push_back(to_gpu(input, form));
    for (const Operand& output : outputs) out.push_back(to_gpu(output, form));
    operation(*gpu_, in, out);
    for (const Tensor& tensor : out) {
      if (tensor.dtype() == DType::int32 && tensor.channel_block() != 1) {
        back.push_back(Tensor::empty({0}));  // winners are in another order; the backward shows them
      } else {
        back.push_back(to_cpu(tensor));
      }
    }
    return back;
  }

  static double value_of(const Tensor& tensor, std::int64_t i) {
    switch (tensor.dtype()) {
      case DType::float32:
        return tensor.data<float>()[i];
      case DType::float64:
        return tensor.data<double>()[i];
      case DType::int32:
        return tensor.data<std::int32_t>()[i];
      case DType::uint8:
        return tensor.data<std::uint8_t>()[i];
      default:
        return static_cast<double>(tensor.data<std::int64_t>()[i]);
    }
  }

  static void check(const Tensor& result, const Tensor& wanted, const Form& form, std::size_t output) {
    if (result.numel() != wanted.numel()) return;  // winners in another order
    const bool half = form.dtype == DType::bfloat16;
    const double absolute = half ? 8e-3 : 1e-5, relative = half ? 2e-2 : 1e-4;
    double most = 1;
    for (std::int64_t i = 0; i < wanted.numel(); ++i) {
      const double value = std::abs(value_of(wanted, i));
      if (std::isfinite(value)) most = std::max(most, value);
    }
    for (std::int64_t i = 0; i < wanted.numel(); ++i) {
      const double value = value_of(result, i), target = value_of(wanted, i);
      if (value == target || (std::isnan(value) && std::isnan(target))) continue;
      if (std::abs(value - target) <= absolute * most + relative * std::abs(target)) continue;
      BOOST_ERROR("output " << output << ": element " << i << " of " << to_string(wanted.shape()) << " is "
                            << value << ", not " << target);
      return;
    }
  }

  std::unique_ptr<kernels::Backend> cpu_ = kernels::make_cpu_backend(1), gpu_ = kernels::make_cuda_backend(0);
};

}  // namespace lockstep::test
