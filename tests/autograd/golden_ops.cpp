// Every differentiable function against PyTorch, on the CPU or on a GPU: values and gradients of each case in
// ops*.h5 (golden/ops.py says their form) and science*.h5 (golden/science.py), in float32 and in bf16.
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <map>

#include "autograd/golden_bounds.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tensor/dtype.h"
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

/// A number, or one for each direction.
ops::Directions directions(const nlohmann::json& given) {
  if (given.is_number()) return given.get<int>();
  const auto all = given.get<std::vector<int>>();
  return all.size() == 2 ? ops::Directions(all[0], all[1]) : ops::Directions(all.at(0), all.at(1), all.at(2));
}

ops::ConvolutionGeometry geometry_of(const Given& given) {
  const auto one = [&](const char* key, int otherwise) {
    return directions(given.what.value(key, nlohmann::json(otherwise)));
  };
  return {one("stride", 1), one("padding", 0), given.what.value("groups", 1), one("dilation", 1)};
}

template <Var (*function)(const Var&, const ops::PoolGeometry&)>
Vars of_windows(const Given& given) {
  const auto of = [&](const char* key) { return directions(given.what.at(key)); };
  return {function(given.x.at(0), {of("kernel"), of("stride"), of("padding")})};
}

/// In training, over the batch alone.
Vars batch_normalised(const Given& given) {
  const Tensor mean = given.backend.empty(given.x.at(1).shape()), var = given.backend.empty(mean.shape());
  given.backend.fill(mean, 0);
  given.backend.fill(var, 1);
  return {batch_norm(given.x.at(0), given.x.at(1), given.x.at(2),
                     {.eps = given.what.at("eps"), .running_mean = mean, .running_var = var})};
}

template <Var (*function)(const Var&, const Var&)>
Vars of_two(const Given& given) {
  return {function(given.x.at(0), given.x.at(1))};
}

template <Var (*function)(const Var&, const Tensor&, std::int64_t)>
Vars of_segments(const Given& given) {
  return {function(given.x.at(0), given.indices(1), given.what.at("segments"))};
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
      // segments
      {"segment_sum", {of_segments<segment_sum>}},
      {"segment_mean", {of_segments<segment_mean>}},
      {"segment_max", {of_segments<segment_max>}},
      {"segment_softmax", {of_segments<segment_softmax>}},
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
                                   directions(g.what.at("output_padding")))};
        },
        {2}}},
      {"resize_bilinear", {[](const Given& g) -> Vars {
         return {resize_bilinear(g.x.at(0), g.what.at("size").at(0), g.what.at("size").at(1))};
       }}},
      // volumes
      {"conv3d",
       {[](const Given& g) -> Vars { return {conv3d(g.x.at(0), g.x.at(1), g.x.at(2), geometry_of(g))}; },
        {2}}},
      {"conv_transpose3d",
       {[](const Given& g) -> Vars {
          return {conv_transpose3d(g.x.at(0), g.x.at(1), g.x.at(2), geometry_of(g),
                                   directions(g.what.at("output_padding")))};
        },
        {2}}},
      {"max_pool3d", {of_windows<max_pool3d>}},
      {"avg_pool3d", {of_windows<avg_pool3d>}},
      {"adaptive_avg_pool", {[](const Given& g) -> Vars {
         return {adaptive_avg_pool(g.x.at(0), g.what.at("size").get<std::vector<std::int64_t>>())};
       }}},
      {"upsample_nearest3d",
       {[](const Given& g) -> Vars { return {upsample_nearest3d(g.x.at(0), g.what.at("scale"))}; }}},
      {"resize_trilinear", {[](const Given& g) -> Vars {
         const auto size = g.what.at("size").get<std::vector<std::int64_t>>();
         return {resize_trilinear(g.x.at(0), size.at(0), size.at(1), size.at(2))};
       }}},
      // normalisation and sequences
      {"batch_norm", {batch_normalised, {1, 2}}},
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
         return {attention(g.x.at(0), g.x.at(1), g.x.at(2), g.what.at("causal").get<bool>(), {},
                           {.bias = g.what.contains("bias") ? g.x.at(3) : Var(),
                            .key_mask = g.what.contains("key_mask") ? g.indices(3) : Tensor()})};
       }}},
      {"lengths", {[](const Given& g) -> Vars { return {mean_over_lengths(g.x.at(0), g.indices(1))}; }}},
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

/// "output", or "output/0", "output/1" ...
std::vector<std::string> paths_of(const GoldenCase& golden, const std::string& path) {
  if (!golden.has(path + "/0")) return {path};
  std::vector<std::string> names = golden.names(path);
  for (std::string& name : names) name = path + "/" + name;
  return names;
}

/// By the names of golden files: float32 on the CPU.
struct Result {
  std::string path;
  Tensor value;
  bool is_bf16 = false;  ///< as it was stored
};
using Results = std::vector<Result>;

/// What passes read.
enum class Numbers { given, rounded, magnitudes };  ///< rounded: to bf16; magnitudes: of these

Tensor read(const GoldenCase& golden, const std::string& path, Numbers numbers) {
  Tensor tensor = golden.tensor(path);
  if (tensor.dtype() != DType::float32 || numbers == Numbers::given) return tensor;
  for (float& x : std::span(tensor.data<float>(), static_cast<std::size_t>(tensor.numel()))) {
    x = from_bfloat16_bits(bfloat16_bits(x));
    if (numbers == Numbers::magnitudes) x = std::abs(x);
  }
  return tensor;
}

/// A loss is float32 in every pass, and so is its gradient.
Tensor read_gradient(const GoldenCase& golden, const std::string& output, Numbers numbers) {
  const bool of_loss = golden.what().contains("target");
  return read(golden, "grad_" + output, of_loss ? Numbers::given : numbers);
}

Results results_of(kernels::Backend& backend, const GoldenCase& golden, const Function& function,
                   DType compute, Numbers numbers) {
  const auto there = [&](const Tensor& tensor, DType dtype) {
    const Tensor same = kernels::on_device(tensor, backend);
    if (tensor.dtype() != DType::float32 || dtype == DType::float32) return same;
    const Tensor half = backend.empty(tensor.shape(), dtype);
    backend.copy(same, half);
    return half;
  };
  const auto here = [&](const std::string& path, const Tensor& tensor) {
    return Result{path, kernels::on_cpu(in_float32(backend, tensor), &backend),
                  tensor.dtype() == DType::bfloat16};
  };
  Tape tape(backend);
  tape.begin({.compute = compute});
  Given given{golden.what(), {}, backend};
  for (const std::string& path : paths_of(golden, "input")) {
    const bool stays =
        std::ranges::find(function.float32_inputs, given.x.size()) != function.float32_inputs.end();
    const Tensor x = there(read(golden, path, numbers), stays ? DType::float32 : compute);
    given.x.push_back(x.dtype() == DType::int64 ? tape.constant(x) : tape.input(x));
  }
  Results results;
  const Vars outputs = function.run(given);
  const std::vector<std::string> paths = paths_of(golden, "output");
  BOOST_REQUIRE_EQUAL(outputs.size(), paths.size());
  for (std::size_t i = 0; i < paths.size(); ++i) {
    results.push_back(here(paths[i], to_channel_block(outputs[i], 1).value()));
    tape.backward(outputs[i], there(read_gradient(golden, paths[i], numbers), outputs[i].value().dtype()));
  }
  tape.finish_backward();
  for (const std::string& name : golden.names("grad_input"))
    results.push_back(here("grad_input/" + name, tape.gradient(given.x.at(std::stoul(name)))));
  return results;
}

const Function& function_of(const std::string& op) {
  const auto function = functions().find(op);
  BOOST_REQUIRE_MESSAGE(function != functions().end(), "unknown operation " << op);
  return function->second;
}

void check_float32(kernels::Backend& backend, const GoldenCase& golden) {
  const std::string op = golden.what().at("op");
  const Tolerance tolerance = is_elementwise(op) ? elementwise_tolerance : layer_tolerance;
  for (const Result& found : results_of(backend, golden, function_of(op), DType::float32, Numbers::given)) {
    const std::string text = mismatch(golden, found.path, found.value, tolerance);
    BOOST_CHECK_MESSAGE(text.empty(), text);
  }
}

/// Half a unit in the last place of a bf16.
double half_a_unit(float x) { return std::ldexp(1.0, std::max(std::ilogb(x), -126) - 8); }

/// A case in bf16 beside PyTorch's bf16 results, by golden_bounds.h. Where a file has none, beside our own
/// float32 results of the same rounded numbers.
class InBf16 {
 public:
  InBf16(kernels::Backend& backend, const GoldenCase& golden) : golden_(golden) {
    const std::string op = golden.what().at("op");
    const Function& function = function_of(op);
    bound_ = bounds::all().at(op);
    found_ = results_of(backend, golden, function, DType::bfloat16, Numbers::rounded);
    exact_ = results_of(backend, golden, function, DType::float32, Numbers::rounded);
    for (const Result& exact : exact_) wanted_.push_back(of_pytorch(exact));
    if (bound_.terms)
      terms_ = results_of(backend, golden, function_of(bound_.terms), DType::float32, Numbers::magnitudes);
    if (bound_.more) find_additions(backend);
    if (bound_.sums_in_bf16 && pytorch_sums_in_bf16()) {
      const Shape weight = golden.tensor("input/1").shape();
      places_ = weight.numel() / (weight[0] * weight[1]);
    }
  }

  const Results& found() const { return found_; }

  /// Empty if `found` may take the place of result i.
  std::string check(std::size_t i, const Result& found) const {
    const double roundings = found.path.starts_with("output") ? bound_.output : bound_.gradient;
    const auto beside = [&](const Result& wanted, double more) {
      return mismatch(golden_, found.path, found.value, wanted.value,
                      [&](std::int64_t k) { return allowed(i, found, wanted, roundings + more, k); });
    };
    if (places_ == 0) return beside(wanted_[i], 0);
    return beside(exact_[i], 0) + beside(wanted_[i], static_cast<double>(places_));
  }

 private:
  Result of_pytorch(const Result& otherwise) const {
    if (!golden_.has("bf16/" + otherwise.path)) return otherwise;
    const Tensor tensor = golden_.tensor("bf16/" + otherwise.path);
    const std::span<const float> values(tensor.data<float>(), static_cast<std::size_t>(tensor.numel()));
    return {otherwise.path, tensor, std::ranges::all_of(values, [](float x) {
              return (std::bit_cast<std::uint32_t>(x) & 0xffffu) == 0;
            })};
  }

  void find_additions(kernels::Backend& backend) {
    Tape tape(backend);
    tape.begin({.record = false});
    const auto known = [&](const Tensor& x) { return tape.constant(kernels::on_device(x, backend)); };
    bounds::Known at{golden_.what(), {}, {}, known(wanted_[0].value), {}};
    for (const std::string& path : paths_of(golden_, "input"))
      at.x.push_back(known(read(golden_, path, Numbers::rounded)));
    at.dy = known(read_gradient(golden_, "output", Numbers::rounded));
    at.off = abs(known(found_[0].value) - at.y);
    for (const Var& addition : bound_.more(at))
      additions_.push_back(addition.value() ? kernels::on_cpu(addition.value(), &backend) : Tensor());
  }

  /// Then more than one element in 32 is not what our float32 result rounds to; a wrong one is not many.
  bool pytorch_sums_in_bf16() const {
    std::int64_t far = 0, all = 0;
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      const float *const a = wanted_[i].value.data<float>(), *const b = exact_[i].value.data<float>();
      const std::int64_t count = wanted_[i].value.numel();
      for (std::int64_t k = 0; k < count; ++k)
        far += std::abs(a[k] - b[k]) > as_stored(i, wanted_[i], exact_[i], k) ? 1 : 0;
      all += count;
    }
    return 32 * far > all;
  }

  /// The magnitude of the terms of element k of result i.
  double terms(std::size_t i, const Result& wanted, std::int64_t k) const {
    return std::abs((bound_.terms ? terms_[i] : wanted).value.data<float>()[k]);
  }

  /// How far element k of result i may be if nothing but results is rounded.
  double as_stored(std::size_t i, const Result& found, const Result& wanted, std::int64_t k) const {
    const auto half = [k](const Result& of) {
      return of.is_bf16 ? half_a_unit(of.value.data<float>()[k]) : 0;
    };
    return bound_.moves ? 0 : half(found) + half(wanted) + bounds::float32_sum * terms(i, wanted, k);
  }

  double allowed(std::size_t i, const Result& found, const Result& wanted, double roundings,
                 std::int64_t k) const {
    constexpr double of_roundings = 1 + 0x1p-5;  // further roundings of what is rounded
    const std::size_t added = found.path.starts_with("output") ? 0 : 1 + std::stoul(found.path.substr(11));
    const bool more = added < additions_.size() && additions_[added];
    return as_stored(i, found, wanted, k) + of_roundings * ((more ? additions_[added].data<float>()[k] : 0) +
                                                            roundings * bounds::unit * terms(i, wanted, k));
  }

  const GoldenCase& golden_;
  bounds::Bound bound_;
  Results found_, wanted_, exact_, terms_;  ///< exact: ours in float32
  std::vector<Tensor> additions_;
  std::int64_t places_ = 0;  ///< of a kernel, if PyTorch sums over them in bf16
};

void check_bf16(kernels::Backend& backend, const GoldenCase& golden) {
  const InBf16 in_bf16(backend, golden);
  for (std::size_t i = 0; i < in_bf16.found().size(); ++i) {
    const std::string text = in_bf16.check(i, in_bf16.found()[i]);
    BOOST_CHECK_MESSAGE(text.empty(), text);
  }
}

/// Operations of science.h5 that Lockstep does not have.
bool is_missing(const std::string& op) {
  static const std::vector<std::string> all{"rfft2",          "irfft2", "rfft3", "irfft3",
                                            "complex_linear", "einsum", "roll"};
  return std::ranges::find(all, op) != all.end();
}

template <class Check>
void for_each_case(const Check& check) {
  const std::unique_ptr<kernels::Backend> backend = make_backend_under_test();
  int cases = 0;
  for (const char* const files : {"ops", "science"}) {
    for_each_golden_case(files, [&](const GoldenCase& golden) {
      if (files == std::string("science") && is_missing(golden.what().at("op"))) return;
      BOOST_TEST_CONTEXT(golden.name()) {
        ++cases;
        try {
          check(*backend, golden);
        } catch (const Error& error) {
          BOOST_ERROR(golden.name() << ": " << error.what());
        }
      }
    });
  }
  BOOST_TEST_MESSAGE(cases << " cases");
}

BOOST_AUTO_TEST_CASE(every_function_agrees_with_pytorch) { for_each_case(check_float32); }

BOOST_AUTO_TEST_CASE(in_bf16_every_function_rounds_as_pytorch_does) { for_each_case(check_bf16); }

/// Of four elements that are 4 units off, at least three are found: others are small beside their terms.
BOOST_AUTO_TEST_CASE(in_bf16_an_element_a_few_units_off_is_found) {
  const std::vector<std::string> ops{"sigmoid", "tanh",        "gelu_erf", "gelu_tanh",
                                     "softmax", "log_softmax", "rms_norm", "group_norm",
                                     "matmul",  "conv2d",      "where"};
  std::map<std::string, std::array<int, 2>> found;  // of how many, by operation
  for_each_case([&](kernels::Backend& backend, const GoldenCase& golden) {
    const std::string op = golden.what().at("op");
    if (std::ranges::find(ops, op) == ops.end()) return;
    const InBf16 in_bf16(backend, golden);
    for (std::size_t i = 0; i < in_bf16.found().size(); ++i) {
      Result changed = in_bf16.found()[i];
      changed.value = Tensor::empty(changed.value.shape());
      const std::span<float> values(changed.value.data<float>(),
                                    static_cast<std::size_t>(changed.value.numel()));
      std::ranges::copy_n(in_bf16.found()[i].value.data<float>(), std::ssize(values), values.begin());
      auto& [of_found, of_all] = found[op];
      for (float& x : values) {
        if (x == 0) continue;
        const float was = std::exchange(x, x + 8 * static_cast<float>(half_a_unit(x)));
        of_found += in_bf16.check(i, changed).empty() ? 0 : 1;
        ++of_all;
        x = was;
      }
    }
  });
  for (const auto& [op, counts] : found)
    BOOST_CHECK_MESSAGE(4 * counts[0] >= 3 * counts[1], op << ": " << counts[0] << " of " << counts[1]);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
