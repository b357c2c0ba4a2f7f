// Optimizer: the common part of all algorithms. It reads the gradients of a GradientSource and updates its
// parameters.
#pragma once

#include <any>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/autograd/param.h"
#include "lockstep/base/option.h"
#include "lockstep/base/registry.h"
#include "lockstep/ops/update.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/gradient_norm.h"

namespace lockstep::optim {

/// Which parameters weight decay reaches. Biases and norm scales are one-dimensional.
enum class Decay {
  matrices,  ///< those of two or more dimensions
  all,
};

constexpr auto words(Decay) { return std::array{"matrices", "all"}; }  ///< of a configuration

/// Factors on the learning rate and the weight decay of the parameters whose whole name matches `pattern`
/// ('*': any run of characters, '?': one).
struct ParamGroup {
  std::string pattern = {};  ///< of whole names: '*' is any run of characters, '?' one
  double lr_factor = 1;      ///< times the learning rate
  double decay_factor = 1;   ///< times the weight decay
};

/// The factors of one parameter by its group and the decay rule.
struct ParamFactors {
  double lr = 1;     ///< times the learning rate
  double decay = 1;  ///< 0: no weight decay
};

/// Factors of each parameter, in the order of `params`. The first group that matches a name counts. Throws
/// UsageError naming a group that has no parameter, or whose factors are negative or not finite.
std::vector<ParamFactors> factors_of(std::span<Param* const> params, Decay decay,
                                     std::span<const ParamGroup> groups);

/// State of one kind, for checkpoints: /optimizer/SLOT/NAME.
struct Slot {
  /// State of one parameter.
  struct Entry {
    std::string name;                        ///< of the parameter
    Tensor tensor;                           ///< float32
    std::optional<PartitionView> part = {};  ///< of what `tensor` is a part; none: it is whole
  };
  std::string name;            ///< as PyTorch calls it: "exp_avg", "exp_avg_sq", "step", "momentum_buffer"
  std::vector<Entry> entries;  ///< one for each parameter that has state
};

/// The options of one step.
struct StepOptions {
  std::optional<double> lr = {};  ///< of this step, from a schedule; otherwise the optimizer's own
  double clip = 0;                ///< maximal norm of the mean gradient; 0: no clipping
  bool measure_norm = false;      ///< also without clipping (costs one more pass over the gradients)
};

/// The result of one step.
struct UpdateResult {
  double gradient_norm = std::numeric_limits<double>::quiet_NaN();  ///< before clipping; NaN: not measured
  double clip_factor = 1;                                           ///< less than 1: the gradient was clipped
};

/// Frozen parameters (trainable = false) have no slots. A step does not change a parameter without a
/// gradient, as PyTorch with grad None. The steady state allocates nothing.
///
/// Where the source has a Partition, this process holds state for the elements it owns and updates only
/// these; the bits are the same. Construction, step(), slots() and destruction are collective then.
class Optimizer : public ParamState {
 public:
  ~Optimizer() override { detach(); }
  /// Its name in configurations: "adamw".
  virtual std::string_view algorithm() const = 0;

  /// Properties of a class of optimizers that follow from its options, without an object.
  struct Traits {
    /// T::states(options, undivided): the number of state tensors of a parameter's shape. Null: unknown.
    std::function<int(const std::any& options, bool undivided)> states;
    /// T::undivided(options, params): the indices of the parameters that it needs whole, as it computes with
    /// matrix products, whose bits depend on the processor. Throws UsageError if options do not fit the
    /// model. Null: it treats every element alone.
    std::function<std::vector<bool>(const std::any& options, std::span<Param* const> params)> undivided;

    /// The traits of T, which has Options.
    template <class T>
    static Traits of() {
      Traits traits;
      if constexpr (requires { &T::states; })
        traits.states = [](const std::any& options, bool whole) {
          return T::states(std::any_cast<const typename T::Options&>(options), whole);
        };
      if constexpr (requires { &T::undivided; })
        traits.undivided = [](const std::any& options, std::span<Param* const> params) {
          return T::undivided(std::any_cast<const typename T::Options&>(options), params);
        };
      return traits;
    }
  };

  /// Applies the gradients. They are multiplied by float32(clip factor / count), rounded once, where PyTorch
  /// rounds the mean and the clipping factor one after the other.
  /// Throws before it changes any parameter: TrainingError if a norm is needed and not finite, or if the
  /// count is not positive; UsageError if no parameter has a gradient, if one has that was frozen at
  /// construction, or if EMA weights are swapped in.
  UpdateResult step(const StepOptions& options = {});

  /// The measurement that step(options) needs: the norm of the gradients, or null. Pass it to the step that
  /// computes the gradients (ddp::DataParallel::step): it then comes with the values that this step reads
  /// anyway, and saves step(options) a pass and a read. The gradients must not change in between.
  Measurement* measurement_for(const StepOptions& options) { return needs_norm(options) ? &norm_ : nullptr; }

  /// Steps applied so far. Set on resume, next to the slots (which hold AdamW's count for each parameter).
  std::int64_t steps() const noexcept { return steps_; }
  void set_steps(std::int64_t steps);  ///< for a resume
  /// The source's backend; the state is on its device.
  kernels::Backend& backend() const { return source().backend(); }
  /// The source's group.
  RunShape run() const { return source().run(); }

  /// The learning rate of steps without StepOptions::lr.
  double lr() const noexcept { return lr_; }
  void set_lr(double lr);  ///< of later steps without a schedule
  /// Parameters with other rates, from now on. Throws like factors_of().
  void set_groups(std::span<const ParamGroup> groups);

  /// All state but steps(), by slot, as this process holds it; parameters in the model's order. Which slots
  /// and entries there are depends on the options and the model only. The tensors are handles to write into
  /// on resume; with a Partition they are parts. Not collective.
  std::vector<Slot> held_slots() const;
  /// The same as whole tensors: with a Partition copies in CPU memory, gathered from all ranks.
  std::vector<Slot> slots() const;
  std::vector<Entry> replicated() const override;
  /// The memory of the slots.
  StateBytes state_bytes() const;

  /// From now on step() updates the EMA weights of `ema` in the same pass over memory, bit-identical to
  /// ema.update(). Throws UsageError if an Ema is attached already, if its parameters are not those of the
  /// optimizer, or if it has another Partition.
  void attach(Ema& ema);
  void detach() noexcept;  ///< ends what attach() began, as the end of either object does

 protected:
  /// Throws UsageError on a bad lr or group.
  Optimizer(GradientSource& source, double lr, double weight_decay, Decay decay,
            std::span<const ParamGroup> groups);
  /// For options with these members. Also throws the UsageErrors of option::check().
  template <class Options>
  Optimizer(GradientSource& source, const Options& options)
      : Optimizer(source, options.lr, options.weight_decay, options.decay, options.groups) {
    option::check(options, "optimizer.");
  }

  /// The step of one trainable parameter that has a gradient, and of its EMA weights.
  struct Update {
    std::size_t index = 0;      ///< of the parameter
    Tensor value, gradient;     ///< with a Partition the owned elements as vectors, which may be empty
    double lr = 0;              ///< group factor included
    double weight_decay = 0;    ///< 0 if the decay rule exempts it
    float gradient_factor = 1;  ///< divides the sum of gradients by the count, and clips
    std::span<const ops::EmaTarget> ema;  ///< EMA weights that follow in the same pass
    Tensor rounded;                       ///< gets the new value in bf16, if apply() can; may be empty
  };
  /// Called once a step before apply(), with all updates.
  virtual void prepare([[maybe_unused]] std::span<const Update> updates) {}
  /// Applies the updates: those of a whole step at once, or, with a Partition, one after another.
  virtual void apply(std::span<const Update> updates) = 0;

  /// The tensors of a slot by index of the parameter; empty for a parameter without this state.
  struct SlotTensors {
    std::string_view name;            ///< as PyTorch calls it
    std::span<const Tensor> tensors;  ///< one for each parameter
    bool per_element = true;  ///< has one element per updated element; otherwise every process has all of it
  };
  virtual std::vector<SlotTensors> slot_tensors() const = 0;  ///< its state, for checkpoints and memory

  /// The trainable parameters, in the order of the model.
  std::span<Param* const> params() const noexcept { return params_; }
  /// Null: every rank has all of the state.
  const Partition* partition() const noexcept { return partition_; }
  /// Zeroed tensors for the updated elements, by index of the parameter; empty for frozen parameters and
  /// where `has` (by index; empty: true for all) is false.
  std::vector<Tensor> make_slot(const std::vector<bool>& has = {}) const;

 private:
  struct Member {
    bool trainable;
    ParamFactors factors;
    std::size_t ema_leaf = 0;  // in the attached Ema
  };
  static bool needs_norm(const StepOptions& options) { return options.clip != 0 || options.measure_norm; }
  void check_gradients() const;
  /// The elements of a whole tensor that this process updates.
  Tensor part(std::size_t index, const Tensor& whole) const;

  /// Throws UsageError if the source has been destroyed.
  GradientSource& source() const;

  GradientSource& source_;
  std::weak_ptr<const void> source_lives_;
  const Partition* partition_;
  std::vector<Param*> params_;
  std::vector<Member> members_;
  GradientNorm norm_;
  std::vector<Update> pending_;  // of the current step
  double lr_, weight_decay_;
  Decay decay_;
  std::int64_t steps_ = 0;
  Ema* ema_ = nullptr;
};

/// Rows of the options weight_decay and decay, which every optimizer has. In a configuration lr is an option
/// of the schedule, and groups have their own keys.
template <class Options>
std::vector<Option<Options>> decay_options() {
  return {option::number("weight_decay", &Options::weight_decay, Range::from(0, 1e38), "weight decay",
                         {.may_change = true, .peers = {"wd", "l2"}}),
          option::or_default(
              option::choice("decay", &Options::decay,
                             "which parameters decay; default: all for sgd, matrices for the others"))};
}

/// The algorithms that a configuration can name. An optimizer is constructed for a source, which must outlive
/// it.
using Registry = lockstep::Registry<Optimizer, GradientSource&>;
/// An algorithm and its keys of [optimizer].
using Algorithm = Registry::Choice;

/// Adds the algorithms that every program has.
void add_built_in(Registry& registry);

/// Marks the parameters undivided that the algorithm needs whole, before ddp::DataParallel divides the model
/// among ranks. Throws UsageError if options do not fit the model.
void prepare_model(const Algorithm& algorithm, const ModelState& model);
/// Float32 elements of its state for a model's parameters, of all ranks together; 0: unknown.
std::int64_t elements_of_state(const Algorithm& algorithm, const ModelState& model);

}  // namespace lockstep::optim
