// List and Sequential: modules whose children are numbered, "0", "1" ..., as PyTorch's ModuleList and
// Sequential number theirs.
#pragma once

#include <concepts>
#include <cstddef>
#include <deque>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/autograd/tape.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Layers of one type, constructed in place:
///
///   nn::List<Block> blocks{*this, "blocks"};
///   for (int i = 0; i < depth; ++i) blocks.emplace_back(width);  // Block(blocks, "0", width), ...
///   for (Block& block : blocks) x = block(x);
template <class T>
class List : public Module {
 public:
  using Module::Module;

  /// Appends a layer, whose name is its number.
  template <class... Args>
  T& emplace_back(Args&&... args) {
    return layers_.emplace_back(*this, fmt::format("{}", layers_.size()), std::forward<Args>(args)...);
  }

  std::size_t size() const noexcept { return layers_.size(); }  ///< how many layers there are
  T& operator[](std::size_t i) { return layers_[i]; }           ///< by number
  T& back() { return layers_.back(); }                          ///< the last one
  auto begin() noexcept { return layers_.begin(); }
  auto end() noexcept { return layers_.end(); }

 private:
  std::deque<T> layers_;  // never moves its elements
};

/// A future layer: its type, and the constructor's arguments after parent and name.
template <class T, class... Args>
struct Recipe {
  std::tuple<Args...> args;  ///< of the layer's constructor, after parent and name
};
template <class T, class... Args>
Recipe<T, std::decay_t<Args>...> make(Args&&... args) {
  return {{std::forward<Args>(args)...}};
}

/// Calls layers one after another, each with the result of the last. make() describes a layer, which the
/// Sequential constructs; any other function from Var to Var gets a number, too:
///
///   nn::Sequential net{*this, "net", nn::make<nn::Linear>(64, 128), relu, nn::make<nn::Linear>(128, 10)};
///   // net.0.weight, net.0.bias, net.2.weight, net.2.bias
class Sequential : public Layer<Sequential> {
 public:
  /// A whole model: 0.weight ....
  template <class... Parts>
  explicit Sequential(std::uint64_t seed, Parts... parts) : Layer(seed) {
    (add(std::move(parts)), ...);
  }
  /// Layers are named by their numbers.
  template <class... Parts>
  Sequential(Module& parent, std::string_view name, Parts... parts) : Layer(parent, name) {
    (add(std::move(parts)), ...);
  }

  /// Appends a layer, and returns it.
  template <class T, class... Args>
  T& add(Recipe<T, Args...> recipe) {
    auto step = std::apply(
        [&](Args&... args) {
          return std::make_unique<StepOf<T>>(*this, fmt::format("{}", size()), std::move(args)...);
        },
        recipe.args);
    T& layer = step->function;
    steps_.push_back(std::move(step));
    return layer;
  }
  /// Appends a function without parameters.
  template <std::invocable<const Var&> Function>
  void add(Function function) {
    steps_.push_back(std::make_unique<StepOf<Function>>(std::move(function)));
  }

  std::size_t size() const noexcept { return steps_.size(); }  ///< layers and functions
  Var forward(const Var& x) {
    Var y = x;
    for (const auto& step : steps_) y = step->run(y);
    return y;
  }

 private:
  struct Step {
    virtual ~Step() = default;
    virtual Var run(const Var& x) = 0;
  };
  template <class Function>
  struct StepOf final : Step {
    template <class... Args>
    explicit StepOf(Args&&... args) : function(std::forward<Args>(args)...) {}
    Var run(const Var& x) override { return function(x); }
    Function function;
  };

  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace lockstep::nn
