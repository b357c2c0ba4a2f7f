#include "train/histograms.h"

#include <span>

#include "lockstep/autograd/partition.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::train {
namespace {

void add(report::Event& event, const std::string& tag, const Tensor& values, double divisor,
         kernels::Backend& backend) {
  const Tensor here = kernels::on_cpu(values, &backend);
  report::Histogram histogram;
  histogram.add({here.data<float>(), static_cast<std::size_t>(here.numel())}, divisor);
  event.add_histogram(tag, histogram);
}

/// All elements: those of other ranks, too.
Tensor whole_gradient(GradientSource& source, std::size_t index) {
  const Param& param = *source.params()[index];
  const Partition* const partition = source.partition();
  if (!partition) return param.gradient;
  const Partition::OwnedElements own{
      .param = index, .elements = partition->part(index, param.gradient), .shape = param.gradient.shape()};
  return partition->gather(std::span(&own, 1), &source.backend()).front();
}

}  // namespace

report::Event histograms_of(GradientSource& source, std::int64_t step, bool on_rank_0) {
  report::Event event(step);
  const std::span<Param* const> params = source.params();
  if (on_rank_0) {
    for (const Param* const param : params) {
      param->wait_ready();
      add(event, "parameters/" + param->name, param->value, 1, source.backend());
    }
  }
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (!params[i]->gradient) continue;
    const Tensor gradient = whole_gradient(source, i);
    if (on_rank_0) add(event, "gradients/" + params[i]->name, gradient, source.count(), source.backend());
  }
  return event;
}

}  // namespace lockstep::train
