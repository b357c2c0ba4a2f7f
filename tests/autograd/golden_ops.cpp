// Every differentiable function against PyTorch, on the CPU or on a GPU: values and gradients of each case in
// ops*.h5 (golden/ops.py says their form).
#include <boost/test/unit_test.hpp>
#include <map>

#include "lockstep/autograd/functions.h"
#include "lockstep/kernels/backend.h"
#include "support/backend_under_test.h"
#include "support/golden.h"
#include "support/world.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(golden_ops, *golden() * ranks(1))

using Vars = std::vector<Var>;

/// A case's arguments and inputs, and the device to put more on.
struct Given {
  const nlohmann::json& what;
  Vars x;
  kernels::Backend& backend;

  /// An integer input.
  const Tensor& indices(std::size_t i) const { return x.at(i).value(); }
  /// Nested lists of numbers as float32.
  Tensor floats(const char* key) const {
    std::vector<std::int64_t> extents;
    for (const nlohmann::json* list = &what.at(key); list->is_array(); list = &list->at(0))
      extents.push_back(static_cast<std::int64_t>(list->size()));
    const Tensor tensor = Tensor::empty(Shape(std::span<const std::int64_t>(extents)));
    float* to = tensor.data<float>();
    const std::function<void(const nlohmann::json&)> put = [&](const nlohmann::json& list) {
      if (!list.is_array()) return void(*to++ = list);
      for (const nlohmann::json& item : list) put(item);
    };
    put(what.at(key));
    return kernels::on_device(tensor, backend);
  }
};

/// The axes of a reduction, and whether they stay.
Axes axes(const Given& given) {
  Axes all;
  for (const int axis : given.what.at("dims")) all.add(axis);
  return all;
}
template <Var (*function)(const Var&, const Axes&, bool)>
Vars of_axes(const Given& given) {
  return {function(given.x.at(0), axes(given), given.what.value("keep", false))};
}

struct Function {
  std::function<Vars(const Given&)> run;
  /// Inputs that are float32 in bf16 passes, too: scales and shifts of normalisations.
  std::vector<std::size_t> float32_inputs = {};
};

template <Var (*function)(const Var&)>
Vars of_one(const Given& given) {
  return {function(given.x.at(0))};
}

/// A number, or one for the height and one for the width.
ops::HeightWidth height_width(const nlohmann::json& given) {
  if (given.is_number()) return given.get<int>();
  return {given.at(0).get<int>(), given.at(1).get<int>()};
}

ops::ConvolutionGeometry geometry_of(const Given& given) {
  const auto one = [&](const char* key, int otherwise) {
    return height_width(given.what.value(key, nlohmann::json(otherwise)));
  };
  return {one("stride", 1), one("padding", 0), given.what.value("groups", 1), one("dilation", 1)};
}

template <Var (*function)(const Var&, const Var&)>
Vars of_two(const Given& given) {
  return {function(given.x.at(0), given.x.at(1))};
}

const std::map<std::string, Function>& functions() {
  static const std::map<std::string, Function> all{
      // elementwise
      {"relu", {of_one<relu>}},
      {"silu", {of_one<silu>}},
      {"gelu_erf", {of_one<gelu_erf>}},
      {"gelu_tanh", {of_one<gelu_tanh>}},
      {"tanh", {of_one<tanh>}},
      {"sigmoid", {of_one<sigmoid>}},
      {"neg", {of_one<neg>}},
      {"exp", {of_one<exp>}},
      {"log", {of_one<log>}},
      {"sqrt", {of_one<sqrt>}},
      {"rsqrt", {of_one<rsqrt>}},
      {"reciprocal", {of_one<reciprocal>}},
      {"abs", {of_one<abs>}},
      {"square", {of_one<square>}},
      {"sin", {of_one<sin>}},
      {"cos", {of_one<cos>}},
      {"erf", {of_one<erf>}},
      {"softplus", {of_one<softplus>}},
      {"log_sigmoid", {of_one<log_sigmoid>}},
      {"mish", {of_one<mish>}},
      {"hardswish", {of_one<hardswish>}},
      {"elu", {[](const Given& g) -> Vars { return {elu(g.x.at(0))}; }}},
      {"leaky_relu", {[](const Given& g) -> Vars { return {leaky_relu(g.x.at(0), g.what.at("slope"))}; }}},
      {"pow", {[](const Given& g) -> Vars { return {pow(g.x.at(0), g.what.at("exponent"))}; }}},
      {"clamp",
       {[](const Given& g) -> Vars { return {clamp(g.x.at(0), g.what.at("low"), g.what.at("high"))}; }}},
      {"scale", {[](const Given& g) -> Vars { return {scale(g.x.at(0), g.what.at("factor"))}; }}},
      {"add_scalar",
       {[](const Given& g) -> Vars { return {add(g.x.at(0), g.what.at("value").get<float>())}; }}},
      {"add", {of_two<lockstep::add>}},
      {"sub", {of_two<sub>}},
      {"mul", {of_two<mul>}},
      {"div", {of_two<div>}},
      {"maximum", {of_two<maximum>}},
      {"minimum", {of_two<minimum>}},
      {"where", {[](const Given& g) -> Vars { return {where(g.indices(0), g.x.at(1), g.x.at(2))}; }}},
      // reductions
      {"sum", {of_axes<sum>}},
      {"mean", {of_axes<mean>}},
      {"variance", {of_axes<variance>}},
      {"amax", {of_axes<amax>}},
      {"amin", {of_axes<amin>}},
      {"logsumexp", {of_axes<logsumexp>}},
      {"softmax", {[](const Given& g) -> Vars { return {softmax(g.x.at(0), g.what.at("dim"))}; }}},
      {"log_softmax", {[](const Given& g) -> Vars { return {log_softmax(g.x.at(0), g.what.at("dim"))}; }}},
      {"cumsum", {[](const Given& g) -> Vars { return {cumsum(g.x.at(0), g.what.at("dim"))}; }}},
      // shape; json has a concat, too
      {"concat", {[](const Given& g) -> Vars { return {lockstep::concat(g.x, g.what.at("dim"))}; }}},
      {"stack", {[](const Given& g) -> Vars { return {stack(g.x, g.what.at("dim"))}; }}},
      {"narrow", {[](const Given& g) -> Vars {
         return {narrow(g.x.at(0), g.what.at("dim"), g.what.at("start"), g.what.at("length"))};
       }}},
      {"chunk", {[](const Given& g) {
         Vars parts(g.what.at("chunks").get<std::size_t>());
         chunk(g.x.at(0), g.what.at("dim"), parts);
         return parts;
       }}},
      {"permute", {[](const Given& g) -> Vars {
         return {permute(g.x.at(0), g.what.at("order").get<std::vector<int>>())};
       }}},
      {"expand", {[](const Given& g) -> Vars {
         return {expand(g.x.at(0), Shape(g.what.at("shape").get<std::vector<std::int64_t>>()))};
       }}},
      {"pad", {[](const Given& g) -> Vars {
         std::vector<Pad> pads;
         for (const nlohmann::json& pad : g.what.at("pads")) pads.push_back({pad.at(0), pad.at(1)});
         return {pad(g.x.at(0), pads, g.what.at("value"))};
       }}},
      {"flip", {[](const Given& g) -> Vars { return {flip(g.x.at(0), axes(g))}; }}},
      {"index_select",
       {[](const Given& g) -> Vars { return {index_select(g.x.at(0), g.what.at("dim"), g.indices(1))}; }}},
      {"gather",
       {[](const Given& g) -> Vars { return {gather(g.x.at(0), g.what.at("dim"), g.indices(1))}; }}},
      // products
      {"matmul", {[](const Given& g) -> Vars { return {matmul(g.x.at(0), g.x.at(1))}; }}},
      // images
      {"conv2d",
       {[](const Given& g) -> Vars { return {conv2d(g.x.at(0), g.x.at(1), g.x.at(2), geometry_of(g))}; },
        {2}}},
      {"conv1d",
       {[](const Given& g) -> Vars { return {conv1d(g.x.at(0), g.x.at(1), g.x.at(2), geometry_of(g))}; },
        {2}}},
      {"conv_transpose2d",
       {[](const Given& g) -> Vars {
          return {conv_transpose2d(g.x.at(0), g.x.at(1), g.x.at(2), geometry_of(g),
                                   height_width(g.what.at("output_padding")))};
        },
        {2}}},
      {"resize_bilinear", {[](const Given& g) -> Vars {
         return {resize_bilinear(g.x.at(0), g.what.at("size").at(0), g.what.at("size").at(1))};
       }}},
      // normalisation and sequences
      {"group_norm",
       {[](const Given& g) -> Vars {
          return {group_norm(g.x.at(0), g.what.at("groups"), g.x.at(1), g.x.at(2), g.what.at("eps"))};
        },
        {1, 2}}},
      {"rms_norm",
       {[](const Given& g) -> Vars { return {rms_norm(g.x.at(0), g.x.at(1), g.what.at("eps"))}; }, {1}}},
      {"rotary", {[](const Given& g) -> Vars {
         const bool halves = g.what.at("layout") == "halves";
         return {rotary(g.x.at(0), halves ? RotaryLayout::halves : RotaryLayout::pairs, g.what.at("base"))};
       }}},
      {"attention", {[](const Given& g) -> Vars {
         return {attention(g.x.at(0), g.x.at(1), g.x.at(2), g.what.at("causal").get<bool>())};
       }}},
      // losses
      {"mse_loss", {[](const Given& g) -> Vars { return {mse(g.x.at(0), g.floats("target")).sum}; }}},
      {"l1_loss", {[](const Given& g) -> Vars { return {l1(g.x.at(0), g.floats("target")).sum}; }}},
      {"smooth_l1_loss", {[](const Given& g) -> Vars {
         return {smooth_l1(g.x.at(0), g.floats("target"), g.what.at("beta")).sum};
       }}},
      {"bce_with_logits",
       {[](const Given& g) -> Vars { return {bce_with_logits(g.x.at(0), g.floats("target")).sum}; }}},
  };
  return all;
}

/// Functions of single elements, whose results have only the error of the formula.
bool is_elementwise(const std::string& op) {
  static const std::vector<std::string> all{
      "neg",    "exp",        "log",  "sqrt",     "rsqrt",      "reciprocal",  "abs",
      "square", "sin",        "cos",  "tanh",     "sigmoid",    "log_sigmoid", "softplus",
      "elu",    "relu",       "silu", "gelu_erf", "gelu_tanh",  "mish",        "hardswish",
      "erf",    "leaky_relu", "pow",  "clamp",    "add_scalar", "scale",       "add",
      "sub",    "mul",        "div",  "maximum",  "minimum",    "where"};
  return std::ranges::find(all, op) != all.end();
}

Tolerance tolerance_of(const std::string& op, DType compute) {
  if (compute == DType::bfloat16) return bf16_tolerance;
  return is_elementwise(op) ? elementwise_tolerance : layer_tolerance;
}

/// "output", or "output/0", "output/1" ...
std::vector<std::string> paths_of(const GoldenCase& golden, const std::string& path) {
  if (!golden.has(path + "/0")) return {path};
  std::vector<std::string> names = golden.names(path);
  for (std::string& name : names) name = path + "/" + name;
  return names;
}

/// By the names of golden files, of floats that are rounded to bf16 first, or not.
using Results = std::vector<std::pair<std::string, Tensor>>;

Results results_of(kernels::Backend& backend, const GoldenCase& golden, const Function& function,
                   DType compute, bool rounded) {
  const auto there = [&](const std::string& path, bool stays = false) {
    const Tensor given = kernels::on_device(golden.tensor(path), backend);
    if (given.dtype() != DType::float32 || stays || !rounded) return given;
    const Tensor half = backend.empty(given.shape(), DType::bfloat16);
    backend.copy(given, half);
    return compute == DType::bfloat16 ? half : in_float32(backend, half);
  };
  const auto here = [&](const Tensor& tensor) {
    return kernels::on_cpu(in_float32(backend, tensor), &backend);
  };
  Tape tape(backend);
  tape.begin({.compute = compute});
  Given given{golden.what(), {}, backend};
  for (const std::string& path : paths_of(golden, "input")) {
    const bool stays =
        std::ranges::find(function.float32_inputs, given.x.size()) != function.float32_inputs.end();
    const Tensor x = there(path, stays);
    given.x.push_back(x.dtype() == DType::int64 ? tape.constant(x) : tape.input(x));
  }
  Results results;
  const Vars outputs = function.run(given);
  const std::vector<std::string> paths = paths_of(golden, "output");
  BOOST_REQUIRE_EQUAL(outputs.size(), paths.size());
  for (std::size_t i = 0; i < paths.size(); ++i) {
    results.emplace_back(paths[i], here(to_channel_block(outputs[i], 1).value()));
    tape.backward(outputs[i], there("grad_" + paths[i]));
  }
  tape.finish_backward();
  for (const std::string& name : golden.names("grad_input"))
    results.emplace_back("grad_input/" + name, here(tape.gradient(given.x.at(std::stoul(name)))));
  return results;
}

/// In bf16 beside our own float32 results of the same rounded numbers: at some places no function of rounded
/// numbers is near that of the given ones.
void check_function(kernels::Backend& backend, const GoldenCase& golden, DType compute) {
  const std::string op = golden.what().at("op");
  const auto function = functions().find(op);
  BOOST_REQUIRE_MESSAGE(function != functions().end(), golden.name() << ": unknown operation " << op);
  const bool half = compute == DType::bfloat16;
  const Results found = results_of(backend, golden, function->second, compute, half);
  const Results wanted =
      half ? results_of(backend, golden, function->second, DType::float32, true) : Results();
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto& [path, tensor] = found[i];
    const std::string text = mismatch(golden, path, tensor, half ? wanted[i].second : golden.tensor(path),
                                      tolerance_of(op, compute));
    BOOST_CHECK_MESSAGE(text.empty(), text);
  }
}

void check_functions(DType compute) {
  const std::unique_ptr<kernels::Backend> backend = make_backend_under_test();
  int cases = 0;
  for_each_golden_case("ops", [&](const GoldenCase& golden) {
    BOOST_TEST_CONTEXT(golden.name()) {
      ++cases;
      try {
        check_function(*backend, golden, compute);
      } catch (const Error& error) {
        BOOST_ERROR(golden.name() << ": " << error.what());
      }
    }
  });
  BOOST_TEST_MESSAGE(cases << " cases");
}

BOOST_AUTO_TEST_CASE(every_function_agrees_with_pytorch) { check_functions(DType::float32); }

BOOST_AUTO_TEST_CASE(in_bf16_every_function_stays_near) { check_functions(DType::bfloat16); }

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
