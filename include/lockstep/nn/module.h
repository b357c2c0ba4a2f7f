// Module: a node in the tree of names. Layers and models are Modules; they own parameters under full dotted
// names, and set their initial values.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lockstep/autograd/param.h"

namespace lockstep::nn {

/// A distribution to draw a parameter's first value from.
struct Init {
  /// The kinds of distributions.
  enum class Kind { constant, uniform, normal };
  Kind kind = Kind::constant;  ///< see Kind
  float scale = 0;  ///< the constant; the bound of U(-bound, bound); the deviation of N(0, deviation^2)

  /// Every element is `value`.
  static constexpr Init constant(float value) { return {Kind::constant, value}; }
  static constexpr Init uniform(float bound) { return {Kind::uniform, bound}; }        ///< U(-bound, bound)
  static constexpr Init normal(float deviation) { return {Kind::normal, deviation}; }  ///< N(0, deviation^2)
};

/// During its life, initialize() does nothing on its thread: for models whose values a file replaces, as the
/// draws of a large model take longer than reading it.
class WithoutInitialValues {
 public:
  WithoutInitialValues();
  ~WithoutInitialValues();
  WithoutInitialValues(const WithoutInitialValues&) = delete;
  WithoutInitialValues& operator=(const WithoutInitialValues&) = delete;
};

/// Overwrites the parameter's value (float32, CPU). Draws are keyed by (seed, name): they depend neither on
/// the order in which a model is built nor on its other parameters.
void initialize(Param& param, const Init& init, std::uint64_t seed);

/// PyTorch's default for weights and biases of Linear and Conv2d: U(+-1 / sqrt(fan_in)).
Init fan_in_uniform(std::int64_t fan_in);

/// A Module owns nothing: submodules and parameters are members of the derived class, and register with their
/// parent at construction:
///
///   struct Classifier : nn::Module {
///     nn::Linear hidden{*this, "hidden", 64, 128};  // hidden.weight, hidden.bias
///     nn::Linear out{*this, "out", 128, 10};
///     Var forward(const Var& x) { return out(relu(hidden(x))); }
///   };
/// Members of a list are named by their position: "0", "1" .... A name may hold dots ("transformer.wte").
/// Full names are known from construction on. Addresses are stable: a Module cannot be copied or moved. A
/// parent must outlive its children.
class Module {
 public:
  /// The root of a tree. `seed` decides the initial values of all parameters in it.
  explicit Module(std::uint64_t seed = 0);
  /// Throws UsageError if the name is empty or taken.
  Module(Module& parent, std::string_view name);
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Full name, "layer1.0.conv1"; empty for the root.
  const std::string& path() const noexcept { return path_; }
  /// The seed of the root.
  std::uint64_t seed() const noexcept { return seed_; }

  /// All leaves, in the order of PyTorch's state_dict: a module's own in the order of registration, then its
  /// children's.
  ModelState state();
  operator ModelState() { return state(); }  ///< for what takes a state

  /// Moves all values of the model to the backend's device, where DataParallel and optimizers constructed
  /// afterwards use them. Does nothing if they are there. Gradients are dropped. The backend must outlive the
  /// model's use. Throws UsageError if this is not the root of its tree.
  void to(kernels::Backend& backend);

  /// Whether training passes of this module communicate with other ranks: SyncBatchNorm, or your own layer
  /// that uses Pass::layer_transport. DataParallel then provides one.
  virtual bool meets_across_ranks() const { return false; }
  /// How other programs store the weights of this model, for loads; constant. Null: with the same names and
  /// shapes.
  virtual const ForeignWeights* foreign_weights() const { return nullptr; }
  /// Calls visit(module) for this module and all below it, parents first.
  void for_each_module(const std::function<void(Module&)>& visit);

  /// Calls compute(), and puts the path of this module in front of a UsageError ("down2.c1: conv2d: ..."),
  /// unless an inner module has done so. The root has no path.
  template <class Compute>
  decltype(auto) named(Compute&& compute) const {
    try {
      return compute();
    } catch (const UsageError& error) {
      rethrow_named(error);
    }
  }

 private:
  friend class Parameter;
  friend class StateBuffer;
  friend class Moments;

  [[noreturn]] void rethrow_named(const UsageError& error) const;
  std::string full_name(std::string_view name) const;
  Module& root() noexcept;
  void claim(const std::string& full_name);
  void release(const std::string& full_name) noexcept;
  void collect(ModelState& state) const;

  Module* parent_ = nullptr;
  std::string path_;
  std::uint64_t seed_;
  kernels::Backend* backend_ = nullptr;    // of the device; the root's only; none: the CPU
  std::unordered_set<std::string> names_;  // of the whole tree; the root's only
  std::vector<Param*> params_;
  std::vector<Buffer*> buffers_;
  std::vector<Statistic*> statistics_;
  std::vector<Module*> children_;
};

/// A callable Module: layer(x) calls Derived's forward(x), and errors have the layer's path (named()).
///
///   struct Block : nn::Layer<Block> {
///     using Layer::Layer;  // (parent, name)
///     nn::Linear in{*this, "in", 64, 256}, out{*this, "out", 256, 64};
///     Var forward(const Var& x) { return x + out(silu(in(x))); }
///   };
template <class Derived>
class Layer : public Module {
 public:
  using Module::Module;

  /// Calls forward(), and puts the layer's path in front of an error.
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return named([&]() -> decltype(auto) {
      return static_cast<Derived&>(*this).forward(std::forward<Args>(args)...);
    });
  }
};

/// A parameter as a member of a Module: float32, registered and initialised at construction.
class Parameter : public Param {
 public:
  /// Throws UsageError if the name is empty or taken, or the shape has no elements.
  Parameter(Module& owner, std::string_view local_name, Shape shape, const Init& init);
  ~Parameter();
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

 private:
  Module& owner_;
};

/// A buffer as a member of a Module.
class StateBuffer : public Buffer {
 public:
  /// A buffer of the model's state that starts as `initial`.
  StateBuffer(Module& owner, std::string_view local_name, Tensor initial);
  ~StateBuffer();
  StateBuffer(const StateBuffer&) = delete;
  StateBuffer& operator=(const StateBuffer&) = delete;

 private:
  Module& owner_;
};

/// A float64 vector summed over all shards of a step, as a member of a Module: derive and write apply().
class Moments : public Statistic {
 public:
  /// `elements` sums, registered under this name.
  Moments(Module& owner, std::string_view local_name, std::int64_t elements);
  ~Moments() override;
  Moments(const Moments&) = delete;
  Moments& operator=(const Moments&) = delete;

  const std::string& name() const override { return name_; }    ///< full dotted name
  std::int64_t elements() const override { return elements_; }  ///< how many sums it has

 private:
  Module& owner_;
  std::string name_;
  std::int64_t elements_;
};

/// Freezes every parameter whose name matches one of the patterns ('*': any run of characters, '?': one).
/// Throws UsageError for a pattern that matches none.
void freeze(const ModelState& state, std::span<const std::string> patterns);

/// Elements of all parameters, or of the trainable ones.
std::int64_t count_parameters(const ModelState& state, bool trainable_only = false);

}  // namespace lockstep::nn
