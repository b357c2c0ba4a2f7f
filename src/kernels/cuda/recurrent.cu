// Steps of recurrent networks.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.cuh"

namespace lockstep::kernels {

template <class E>
__device__ void store(E& to, float value) {
  to = rounded<E>(value);
}

}  // namespace lockstep::kernels

#include "kernels/recurrent.h"

namespace lockstep::kernels {
namespace {

template <class Element>
struct Flat {
  Element element;
  __device__ void operator()(std::int64_t i) const { element(i / element.width, i % element.width); }
};

template <template <int, class> class Element, class Op>
void compute(CudaBackend& gpu, const Op& op, const Tensor& parts) {
  by_type_of(parts, [&]<class E>(E) {
    with_element<Element, E>(op, parts, [&](const auto& element) {
      for_elements(gpu.launch(), op.state.numel(), Flat<std::decay_t<decltype(element)>>{element});
    });
  });
}

void step(CudaBackend& gpu, const ops::RecurrentStep& op) { compute<StepElement>(gpu, op, op.from_x); }
void step_backward(CudaBackend& gpu, const ops::RecurrentStepBackward& op) {
  compute<StepElementBackward>(gpu, op, op.dfrom_x);
}

}  // namespace

void enter_recurrent(CudaBackend& gpu) { gpu.enter<&step, &step_backward>(); }

}  // namespace lockstep::kernels
