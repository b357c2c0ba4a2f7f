#include "lockstep/autograd/gradient_sink.h"

#include <algorithm>

namespace lockstep {

LocalGradients::LocalGradients(const ModelState& state, kernels::Backend& backend)
    : backend_(backend), params_(state.params) {
  std::int64_t largest = 0;
  for (const Statistic* const statistic : state.statistics)
    largest = std::max(largest, statistic->elements());
  statistic_ = backend.empty({largest}, DType::float64);
}

GradientView LocalGradients::gradient_view(Param& param) {
  if (param.gradient) return {param.gradient, true};
  param.gradient = backend_.empty(param.value.shape());
  return {param.gradient, false};
}

GradientView LocalGradients::gradient_view(Statistic& statistic) {
  return {statistic_.rows(0, statistic.elements()), false};
}

void LocalGradients::contributed(Statistic& statistic) {
  statistic.apply(backend_, statistic_.rows(0, statistic.elements()));
}

void LocalGradients::clear() {
  for (Param* const param : params_) param->gradient = {};
  count_ = 0;
}

}  // namespace lockstep
