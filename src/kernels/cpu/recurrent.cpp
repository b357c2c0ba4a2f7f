// Steps of recurrent networks.
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

#include "kernels/recurrent.h"  // with to_float() and store() of simd.h

namespace lockstep::kernels {
namespace {

template <template <int, class> class Element, class Op>
void compute(CpuBackend& cpu, const Op& op, const Tensor& parts) {
  constexpr std::int64_t elements_per_thread = 4096;
  with_element<Element, float>(op, parts, [&](const auto& element) {
    const std::int64_t width = element.width;
    parallel_ranges(cpu.threads(), parts.size(0), elements_per_thread / std::max<std::int64_t>(1, width),
                    [=](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t row = begin; row < end; ++row) {
#pragma GCC ivdep
                        for (std::int64_t k = 0; k < width; ++k) element(row, k);
                      }
                    });
  });
}

void step(CpuBackend& cpu, const ops::RecurrentStep& op) { compute<StepElement>(cpu, op, op.from_x); }
void step_backward(CpuBackend& cpu, const ops::RecurrentStepBackward& op) {
  compute<StepElementBackward>(cpu, op, op.dfrom_x);
}

}  // namespace

void enter_recurrent(CpuBackend& cpu) { cpu.enter<&step, &step_backward>(Computes::in_float32); }

}  // namespace lockstep::kernels
