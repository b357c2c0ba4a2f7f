// Every layer against PyTorch, on the CPU or on a GPU: forward, gradients and buffers of each case in
// layers*.h5.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>

#include "comm/nccl.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/norm.h"
#include "lockstep/ops/loss.h"
#include "support/backend_under_test.h"
#include "support/golden.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(golden_layers, *golden() * ranks(1, 2, 4))

/// Keeps what one pass hands over, to be added over the ranks afterwards.
class PassSink final : public GradientSink {
 public:
  explicit PassSink(kernels::Backend& backend) : backend_(backend) {}

  GradientView gradient_view(Param& param) override {
    param.gradient = backend_.empty(param.value.shape());
    return {param.gradient, false};
  }
  void ready(Param& param) override { ready_.push_back(&param); }
  GradientView gradient_view(Statistic& statistic) override {
    const Tensor contribution = backend_.empty({statistic.elements()}, DType::float64);
    statistics_[&statistic] = contribution;
    return {contribution, false};
  }
  void contributed(Statistic&) override {}

  const std::map<Statistic*, Tensor>& statistics() const { return statistics_; }
  const std::vector<Param*>& ready_params() const { return ready_; }

 private:
  kernels::Backend& backend_;
  std::map<Statistic*, Tensor> statistics_;
  std::vector<Param*> ready_;
};

using Forward = std::function<Var(Tape&, const std::vector<Var>&)>;
/// Builds the layer as the child "m" of `root` (if it has parameters) and returns its forward.
using Factory = Forward (*)(nn::Module& root, std::unique_ptr<nn::Module>& layer, const GoldenCase& golden);

template <class Layer, class... Args>
Forward own(std::unique_ptr<nn::Module>& owner, nn::Module& root, Args&&... args) {
  auto layer = std::make_unique<Layer>(root, "m", std::forward<Args>(args)...);
  Layer* const raw = layer.get();
  owner = std::move(layer);
  return [raw](Tape&, const std::vector<Var>& x) { return (*raw)(x.at(0)); };
}

ops::PoolGeometry pool(const nlohmann::json& what) {
  return {what.at("kernel").get<int>(), what.at("stride").get<int>(), what.value("padding", 0)};
}

nn::BatchNormSettings batch_norm_settings(const nlohmann::json& what) {
  return {.momentum = what.at("momentum"), .eps = what.at("eps")};
}

template <Var (*Function)(const Var&)>
Forward elementwise(nn::Module&, std::unique_ptr<nn::Module>&, const GoldenCase&) {
  return [](Tape&, const std::vector<Var>& x) { return Function(x.at(0)); };
}

using Owner = std::unique_ptr<nn::Module>;

const std::map<std::string, Factory>& factories() {
  static const std::map<std::string, Factory> all{
      {"Linear",
       [](nn::Module& root, Owner& layer, const GoldenCase& g) {
         const Shape w = g.tensor("param/weight").shape();
         return own<nn::Linear>(layer, root, w[1], w[0], g.what().at("bias").get<bool>());
       }},
      {"Conv2d",
       [](nn::Module& root, Owner& layer, const GoldenCase& g) {
         const Shape w = g.tensor("param/weight").shape();
         const int groups = g.what().at("groups");
         return own<nn::Conv2d>(layer, root, w[1] * groups, w[0], static_cast<int>(w[2]),
                                nn::Conv2dOptions{.stride = g.what().at("stride").get<int>(),
                                                  .padding = g.what().at("padding").get<int>(),
                                                  .groups = groups,
                                                  .bias = g.what().at("bias")});
       }},
      {"BatchNorm2d",
       [](nn::Module& root, Owner& layer, const GoldenCase& g) {
         return own<nn::BatchNorm2d>(layer, root, g.tensor("param/weight").numel(),
                                     batch_norm_settings(g.what()));
       }},
      {"SyncBatchNorm",
       [](nn::Module& root, Owner& layer, const GoldenCase& g) {
         return own<nn::SyncBatchNorm>(layer, root, g.tensor("param/weight").numel(),
                                       batch_norm_settings(g.what()));
       }},
      {"GroupNorm",
       [](nn::Module& root, Owner& layer, const GoldenCase& g) {
         return own<nn::GroupNorm>(layer, root, g.what().at("groups").get<int>(),
                                   g.tensor("param/weight").numel(), g.what().at("eps").get<float>());
       }},
      {"LayerNorm",
       [](nn::Module& root, Owner& layer, const GoldenCase& g) {
         return own<nn::LayerNorm>(layer, root, g.tensor("param/weight").numel(),
                                   g.what().at("eps").get<float>());
       }},
      {"Embedding",
       [](nn::Module& root, Owner& layer, const GoldenCase& g) -> Forward {
         const Shape w = g.tensor("param/weight").shape();
         auto table = std::make_unique<nn::Embedding>(root, "m", w[0], w[1]);
         nn::Embedding* const raw = table.get();
         layer = std::move(table);
         return [raw](Tape& tape, const std::vector<Var>& x) { return (*raw)(tape, x.at(0).value()); };
       }},
      {"relu", elementwise<relu>},
      {"silu", elementwise<silu>},
      {"gelu_erf", elementwise<gelu_erf>},
      {"gelu_tanh", elementwise<gelu_tanh>},
      {"MaxPool2d",
       [](nn::Module&, Owner&, const GoldenCase& g) -> Forward {
         return [p = pool(g.what())](Tape&, const std::vector<Var>& x) { return max_pool2d(x.at(0), p); };
       }},
      {"AvgPool2d",
       [](nn::Module&, Owner&, const GoldenCase& g) -> Forward {
         return [p = pool(g.what())](Tape&, const std::vector<Var>& x) { return avg_pool2d(x.at(0), p); };
       }},
      {"GlobalAvgPool2d", elementwise<global_avg_pool2d>},
      {"UpsampleNearest2d",
       [](nn::Module&, Owner&, const GoldenCase& g) -> Forward {
         return [scale = g.what().at("scale").get<int>()](Tape&, const std::vector<Var>& x) {
           return upsample_nearest2d(x.at(0), scale);
         };
       }},
      {"Attention",
       [](nn::Module&, Owner&, const GoldenCase& g) -> Forward {
         return [heads = g.what().at("heads").get<int>(), causal = g.what().at("causal").get<bool>()](
                    Tape&, const std::vector<Var>& x) {
           return attention(x.at(0), x.at(1), x.at(2), heads, causal);
         };
       }},
  };
  return all;
}

/// This rank's samples of a batch that a case cuts into a list of parts: consecutive parts where there are
/// fewer ranks, none for some ranks where there are more.
struct Rows {
  std::int64_t begin = 0, end = 0;
};

Rows rows_of_this_rank(const std::vector<std::int64_t>& split) {
  const std::size_t rank = static_cast<std::size_t>(world().rank()),
                    ranks = static_cast<std::size_t>(world().size());
  Rows rows;
  for (std::size_t part = 0; part < split.size() * (rank + 1) / ranks; ++part) {
    if (part < split.size() * rank / ranks) rows.begin += split[part];
    rows.end += split[part];
  }
  return rows;
}

/// The sum over the ranks of a tensor in CPU memory, in float64.
template <class Element>
void add_over_ranks(const Tensor& tensor) {
  Element* const elements = tensor.data<Element>();
  const std::vector<double> mine(elements, elements + tensor.numel());
  std::vector<double> all(mine.size() * static_cast<std::size_t>(world().size())), sum(mine.size());
  world().all_gather(mine.data(), mine.size() * sizeof(double), all.data());
  for (std::size_t i = 0; i < all.size(); ++i) sum[i % sum.size()] += all[i];
  std::transform(sum.begin(), sum.end(), elements, [](double value) { return static_cast<Element>(value); });
}

/// What computes, and what layers meet over.
struct UnderTest {
  UnderTest() : backend(make_backend_under_test()) {
    if (backend->device() != Device::cpu())
      transport = comm::make_nccl_transport(world(),
                                            {.device = backend->device().index, .stream = backend->stream()});
  }
  comm::GradientTransport& meeting() {
    if (transport) return *transport;
    return world();
  }
  Tensor there(const Tensor& tensor) { return kernels::on_device(tensor, *backend); }
  Tensor here(const Tensor& tensor) { return kernels::on_cpu(tensor, backend.get()); }

  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<comm::GradientTransport> transport;
};

void check(const GoldenCase& golden, const std::string& tensor_name, const Tensor& found,
           const Tensor& wanted, DType compute) {
  const std::string text = mismatch(golden, tensor_name, found, wanted,
                                    compute == DType::float32 ? layer_tolerance : bf16_tolerance);
  BOOST_CHECK_MESSAGE(text.empty(), text);
}

void load_parameters(const GoldenCase& golden, const ModelState& state) {
  BOOST_REQUIRE_MESSAGE(state.params.size() == golden.names("param").size(),
                        golden.name() << ": the layer has other parameters");
  for (Param* const param : state.params)
    copy_elements(golden.tensor("param/" + param->name.substr(2)), param->value);
  BOOST_REQUIRE_MESSAGE(state.buffers.size() == golden.names("buffer").size(),
                        golden.name() << ": the layer has other buffers");
  for (Buffer* const buffer : state.buffers)
    copy_elements(golden.tensor("buffer/" + buffer->name.substr(2)), buffer->value);
}

/// One forward and backward of a layer; channel_block: in which the inputs arrive.
void check_layer(UnderTest& under_test, const GoldenCase& golden, Factory factory, int channel_block,
                 DType compute) {
  nn::Module root;
  std::unique_ptr<nn::Module> layer;
  const Forward forward = factory(root, layer, golden);
  const ModelState state = root.state();
  load_parameters(golden, state);
  kernels::Backend& backend = *under_test.backend;
  root.to(backend);

  PassSink sink(backend);
  Tape tape(backend);
  const bool meets = golden.what().contains("split");
  tape.begin({.training = golden.what().value("training", true),
              .sink = &sink,
              .layer_transport = meets ? &under_test.meeting() : nullptr,
              .compute = compute});
  const Tensor wanted = golden.tensor("output"), grad_output = golden.tensor("grad_output");
  const Rows rows = meets ? rows_of_this_rank(golden.what().at("split")) : Rows{0, wanted.size(0)};

  std::vector<Var> leaves, inputs;
  for (const std::string& name : golden.names("input")) {
    const Tensor x = under_test.there(golden.tensor("input/" + name).rows(rows.begin, rows.end));
    leaves.push_back(x.dtype() == DType::int64 ? tape.constant(x) : tape.input(tape.batch(x).value()));
    inputs.push_back(to_channel_block(leaves.back(), channel_block));
  }
  const Var output = to_channel_block(forward(tape, inputs), 1);
  const auto found = [&](const Tensor& tensor) { return under_test.here(in_float32(backend, tensor)); };
  check(golden, "output", found(output.value()), wanted.rows(rows.begin, rows.end), compute);
  tape.backward(output, tape.batch(under_test.there(grad_output.rows(rows.begin, rows.end))).value());
  tape.finish_backward();

  for (const std::string& name : golden.names("grad_input"))
    check(golden, "grad_input/" + name, found(tape.gradient(leaves.at(std::stoul(name)))),
          golden.tensor("grad_input/" + name).rows(rows.begin, rows.end), compute);
  BOOST_CHECK_EQUAL(sink.ready_params().size(), state.params.size());
  for (Param* const param : state.params) {
    const Tensor gradient = under_test.here(param->gradient);
    if (meets) add_over_ranks<float>(gradient);
    const std::string path = "grad_param/" + param->name.substr(2);
    check(golden, path, gradient, golden.tensor(path), compute);
  }
  for (const auto& [statistic, contribution] : sink.statistics()) {
    const Tensor total = under_test.here(contribution);
    if (meets) add_over_ranks<double>(total);
    statistic->apply(backend, under_test.there(total));
  }
  for (Buffer* const buffer : state.buffers) {
    const std::string path = "buffer_after/" + buffer->name.substr(2);
    check(golden, path, under_test.here(buffer->value), golden.tensor(path), compute);
  }
}

/// PyTorch's losses are means: the sum's gradient times grad_output / weight.
void check_loss(UnderTest& under_test, const GoldenCase& golden, DType compute) {
  kernels::Backend& backend = *under_test.backend;
  PassSink sink(backend);
  Tape tape(backend);
  tape.begin({.sink = &sink, .compute = compute});
  const Var x = tape.input(tape.batch(under_test.there(golden.tensor("input/0"))).value());
  const Tensor target = under_test.there(golden.tensor("target"));
  const Loss loss = golden.what().at("layer") == "MSE"
                        ? mse(x, target)
                        : cross_entropy(x, target,
                                        {.label_smoothing = golden.what().at("label_smoothing"),
                                         .ignore_index = golden.what().at("ignore_index")});
  Tensor mean = Tensor::empty({});
  const ops::CountedSum total = loss.read();
  *mean.data<float>() = static_cast<float>(total.sum / total.count);
  check(golden, "output", mean, golden.tensor("output"), compute);
  const double grad_output = *golden.tensor("grad_output").data<float>();
  backward(loss, static_cast<float>(grad_output / total.count));
  check(golden, "grad_input/0", under_test.here(in_float32(backend, tape.gradient(x))),
        golden.tensor("grad_input/0"), compute);
}

/// In which images are stored where they are not plain: eight, or on a GPU all of them.
int other_channel_block(const kernels::Backend& backend, const Tensor& images) {
  return backend.device() == Device::cpu() ? 8 : static_cast<int>(images.size(1));
}

void check_layers(DType compute) {
  UnderTest under_test;
  int cases = 0;
  for_each_golden_case("layers", [&](const GoldenCase& golden) {
    const std::string layer = golden.what().at("layer");
    BOOST_TEST_CONTEXT(golden.name()) {
      ++cases;
      if (layer == "CrossEntropy" || layer == "MSE") return check_loss(under_test, golden, compute);
      const auto factory = factories().find(layer);
      BOOST_REQUIRE_MESSAGE(factory != factories().end(), golden.name() << ": unknown layer " << layer);
      check_layer(under_test, golden, factory->second, 1, compute);
      const Tensor x = golden.tensor("input/0");
      if (x.shape().rank() != 4) return;
      check_layer(under_test, golden, factory->second, other_channel_block(*under_test.backend, x), compute);
    }
  });
  BOOST_TEST_MESSAGE(cases << " cases");
}

BOOST_AUTO_TEST_CASE(every_layer_agrees_with_pytorch) { check_layers(DType::float32); }

BOOST_AUTO_TEST_CASE(in_bf16_every_layer_stays_near) { check_layers(DType::bfloat16); }

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
