#include "lockstep/models/mlp.h"

#include "base/text.h"
#include "lockstep/models/registry.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::models {

std::vector<Option<Mlp::Options>> Mlp::Options::options() {
  using namespace option;
  return {numbers("sizes", &Options::sizes, widths, "widths of the layers, from input to output",
                  {.required = true, .peers = {"hidden_sizes", "layer_sizes", "dims"}}),
          number("dropout", &Options::dropout, Range::below(0, 1), "probability of zeroing an activation",
                 {.keeps_weights = true})};
}

Mlp::Mlp(const Options& options, std::uint64_t seed) : Model(seed), sizes_(checked(options).sizes) {
  if (sizes_.size() < 2)
    throw UsageError("model.sizes = {} names one width; give at least the input's and the output's",
                     sizes_.front());
  for (std::size_t i = 0; i + 1 < sizes_.size(); ++i) {
    layers_.push_back(
        std::make_unique<nn::Linear>(*this, fmt::format("net.{}", 2 * i), sizes_[i], sizes_[i + 1]));
    if (i + 2 < sizes_.size())
      dropouts_.push_back(std::make_unique<nn::Dropout>(*this, fmt::format("net.{}", 2 * i + 1),
                                                        static_cast<float>(options.dropout)));
  }
  layers_.back()->mark_as_head();
}

void Mlp::check_input(const Shape& x) const {
  std::int64_t elements = 1;
  for (int d = 1; d < x.rank(); ++d) elements *= x[d];
  if (x.rank() >= 1 && elements == sizes_.front()) return;
  throw DataError("a batch of shape {} has {} per sample; the mlp takes {} (first of model.sizes)",
                  to_string(x), pluralized(elements, "element"), sizes_.front());
}

Var Mlp::forward(Tape& tape, const Batch& batch) { return (*layers_.back())(*features(tape, batch)); }

std::optional<Var> Mlp::features(Tape& tape, const Batch& batch) {
  const Tensor& x = batch["x"];
  check_input(x.shape());
  Var h = reshape(tape.batch(x), {x.size(0), sizes_.front()});
  for (std::size_t i = 0; i + 1 < layers_.size(); ++i)
    h = (*dropouts_[i])((*layers_[i])(h, ops::Activation::relu));
  return h;
}

void register_mlp(Registry& registry) { registry.add<Mlp>("mlp"); }

}  // namespace lockstep::models
