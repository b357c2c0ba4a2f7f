// A sink that notes what a tape told it.
#pragma once

#include <string>
#include <vector>

#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::test {

class RecordingSink final : public GradientSink {
 public:
  explicit RecordingSink(kernels::Backend& backend) : backend_(backend) {}

  GradientView gradient_view(Param& param) override {
    events.push_back("view " + param.name);
    if (param.gradient) return {param.gradient, true};
    param.gradient = backend_.empty(param.value.shape());
    return {param.gradient, false};
  }
  void ready(Param& param) override { events.push_back("ready " + param.name); }
  GradientView gradient_view(Statistic& statistic) override {
    const bool first = statistics.empty();
    statistics.resize(static_cast<std::size_t>(statistic.elements()));
    return {Tensor::view(statistics.data(), {statistic.elements()}, DType::float64), !first};
  }
  void contributed(Statistic& statistic) override { events.push_back("contributed " + statistic.name()); }
  void progress() override { ++progress_calls; }

  std::vector<std::string> events;
  std::vector<double> statistics;
  int progress_calls = 0;

 private:
  kernels::Backend& backend_;
};

}  // namespace lockstep::test
