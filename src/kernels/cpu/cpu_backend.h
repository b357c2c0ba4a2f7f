// The CPU backend: oneDNN for products and convolutions, plain vectorised loops for the rest.
//
// Two types of activations. Float32 goes to the function that the operation's entry names, and so does bf16
// if the function supports both types (simd.h). Otherwise the float32 function computes on float32 copies of
// its operands (float32_copies.cpp). So each operation has one implementation, and one rounding.
#pragma once

#include <dnnl.hpp>
#include <memory>

#include "kernels/cpu/gemm.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

struct ConvolutionCache;  // convolution.h
class NativeBfloat16;

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int threads);
  ~CpuBackend() override;

  Device device() const override { return Device::cpu(); }
  int threads() const override { return threads_; }
  std::string instruction_set() const override;
  std::string math_library() const override;
  std::string why_slow_in_bf16() const override;
  Tensor empty(Shape shape, DType dtype = DType::float32, int channel_block = 1) override;
  std::size_t reserved_bytes() const override { return pool_.reserved_bytes(); }
  int preferred_channel_block(std::int64_t channels, DType dtype) const override;
  Shape attention_saved_shape(std::int64_t batch, int heads, std::int64_t queries,
                              std::int64_t keys) const override;

  // For the functions of this folder.

  /// Working memory from the pool: uninitialised, 64-byte aligned, free again when it goes out of scope.
  Tensor scratch(std::int64_t elements, DType dtype = DType::float32) { return empty({elements}, dtype); }
  const Gemm& gemm() const { return gemm_; }
  const dnnl::engine& engine() const { return engine_; }
  const dnnl::stream& stream_of_dnnl() const { return stream_; }
  ConvolutionCache& convolutions();
  /// The processor's own products of bf16 operands; null if it has none.
  NativeBfloat16* native_bfloat16() { return native_bfloat16_.get(); }

 protected:
  void perform(const ops::AnyOperation& operation) override;
  void copy_elements(const Tensor& from, const Tensor& to) override;

 private:
  int threads_;
  MemoryPool pool_;
  Gemm gemm_;
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::shared_ptr<ConvolutionCache> convolutions_;  // created at the first convolution
  std::unique_ptr<NativeBfloat16> native_bfloat16_;
};

/// Runs a float32 function on float32 copies of bf16 activations.
void run_on_float32_copies(CpuBackend& cpu, const Entry& entry, const ops::AnyOperation& operation);
template <auto function, class Operation>
void run_on_float32_copies(CpuBackend& cpu, const Operation& op, std::int64_t rows_together = 0) {
  const Entry entry{.run =
                        [](Backend& backend, const void* operation) {
                          function(static_cast<CpuBackend&>(backend),
                                   *static_cast<const Operation*>(operation));
                        },
                    .rows_together = rows_together};
  run_on_float32_copies(cpu, entry, op);
}

}  // namespace lockstep::kernels
