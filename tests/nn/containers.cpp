// List and Sequential: names, order, and what they compute.
#include "lockstep/nn/containers.h"

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "lockstep/autograd/functions.h"
#include "lockstep/nn/layers.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(containers)

using Names = std::vector<std::string>;

Names parameter_names(const ModelState& state) {
  Names names;
  for (const Param* const param : state.params) names.push_back(param->name);
  return names;
}

struct Lists : nn::Module {
  Lists() {
    for (const std::int64_t width : {4, 5}) layers.emplace_back(3, width);
  }
  nn::List<nn::Linear> layers{*this, "layers"};
  nn::Linear out{*this, "out", 5, 2, false};
};

struct Fixture {
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Tape tape{*backend};
  Fixture() { tape.begin({.record = false}); }
  Var ones(const Shape& shape) {
    const Tensor x = backend->empty(shape);
    backend->fill(x, 1);
    return tape.constant(x);
  }
};

void check_equal(const Tensor& a, const Tensor& b) {
  BOOST_REQUIRE((a.shape() == b.shape()));
  BOOST_TEST(std::equal(a.data<float>(), a.data<float>() + a.numel(), b.data<float>()));
}

BOOST_AUTO_TEST_CASE(a_list_numbers_its_layers_in_its_own_place_of_the_model) {
  Lists model;
  BOOST_TEST(parameter_names(model) == (Names{"layers.0.weight", "layers.0.bias", "layers.1.weight",
                                              "layers.1.bias", "out.weight"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_list_is_iterated_and_indexed) {
  Lists model;
  BOOST_TEST(model.layers.size() == 2u);
  Names paths;
  for (const nn::Linear& layer : model.layers) paths.push_back(layer.path());
  BOOST_TEST(paths == (Names{"layers.0", "layers.1"}), boost::test_tools::per_element());
  BOOST_TEST(&model.layers[1] == &model.layers.back());
}

BOOST_AUTO_TEST_CASE(a_sequential_has_the_names_of_pytorch) {
  nn::Sequential model(1, nn::make<nn::Linear>(3, 4), relu, nn::make<nn::Linear>(4, 2, false));
  BOOST_TEST(parameter_names(model) == (Names{"0.weight", "0.bias", "2.weight"}),
             boost::test_tools::per_element());
  nn::Module root;
  nn::Sequential nested(root, "net", nn::make<nn::Sequential>(silu, nn::make<nn::Linear>(1, 1, false)),
                        nn::make<nn::Conv2d>(1, 1, 3, nn::Conv2dOptions{.bias = false}));
  BOOST_TEST(parameter_names(root) == (Names{"net.0.1.weight", "net.1.weight"}),
             boost::test_tools::per_element());
}

BOOST_FIXTURE_TEST_CASE(a_sequential_calls_one_after_another, Fixture) {
  nn::Sequential model(1, nn::make<nn::Linear>(3, 4), relu);
  model.add([](const Var& x) { return scale(x, 3); });
  nn::Linear& last = model.add(nn::make<nn::Linear>(4, 2));
  BOOST_TEST(model.size() == 4u);
  BOOST_TEST(last.path() == "3");
  nn::Module root(1);
  nn::Linear first(root, "0", 3, 4), second(root, "3", 4, 2);
  const Var x = ones({5, 3});
  check_equal(model(x).value(), second(scale(relu(first(x)), 3)).value());
  check_equal(nn::Sequential(1)(x).value(), x.value());
}

BOOST_FIXTURE_TEST_CASE(an_error_inside_a_sequential_names_the_layer_of_that_number, Fixture) {
  nn::Module root;
  nn::Sequential net(root, "net", nn::make<nn::Linear>(3, 4), relu, nn::make<nn::Linear>(5, 2));
  BOOST_CHECK_EXCEPTION(net(ones({1, 3})), UsageError, [](const UsageError& error) {
    return std::string(error.what()).starts_with("net.2: linear: ");
  });
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
