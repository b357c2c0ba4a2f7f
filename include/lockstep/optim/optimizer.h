// Optimizer: what all algorithms share. It reads the gradients of a GradientSource and updates its
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

/// What the groups and the decay rule come to for one parameter.
struct ParamFactors {
  double lr = 1;     ///< times the learning rate
  double decay = 1;  ///< 0: no weight decay
};

/// Factors of each parameter, in the order given. The first group that matches a name counts. Throws
/// UsageError naming a group that no parameter falls into, or whose factors are negative or not finite.
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

/// What one step does.
struct StepOptions {
  std::optional<double> lr = {};  ///< of this step, from a schedule; otherwise the optimizer's own
  double clip = 0;                ///< the greatest norm of the mean gradient; 0: no clipping
  bool measure_norm = false;  ///< wanted even without clipping (it costs one more pass over the gradients)
};

/// What one step did.
struct UpdateResult {
  double gradient_norm = std::numeric_limits<double>::quiet_NaN();  ///< before clipping; NaN: not measured
  double clip_factor = 1;                                           ///< less than 1: the gradient was clipped
};

/// Frozen parameters (trainable = false) have no slots. A parameter without gradient in a step is left alone
/// in it, as PyTorch does with grad None. The steady state allocates nothing.
///
/// Where the source has a Partition, this process holds state for the elements it owns and updates only
/// these; the bits are the same. Construction, step(), slots() and destruction are collective then.
class Optimizer : public ParamState {
 public:
  ~Optimizer() override { detach(); }
  /// "adamw": as configurations name it.
  virtual std::string_view algorithm() const = 0;

  /// What is known of a class of optimizers before one is made, from its options.
  struct Traits {
    /// T::states(options, undivided): how many tensors of its shape are kept of a parameter. None: not known.
    std::function<int(const std::any& options, bool undivided)> states;
    /// T::undivided(options, params): the parameters, by index, that it takes whole, as it computes with
    /// matrix products, whose bits depend on the processor. Throws UsageError if options do not fit the
    /// model. None: it treats every element alone.
    std::function<std::vector<bool>(const std::any& options, std::span<Param* const> params)> undivided;

    /// Those of T, which has Options.
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
  /// Throws before any parameter is touched: TrainingError when a norm was asked for and is not finite, or
  /// when the count is not positive; UsageError when no parameter has a gradient, one has that was frozen
  /// when the optimizer was made, or EMA weights are swapped in.
  UpdateResult step(const StepOptions& options = {});

  /// What step(options) needs measured: the norm of the gradients, or nothing. Given to the step that makes
  /// the gradients (ddp::DataParallel::step), it is there with what that reads anyway, and saves
  /// step(options) a pass and a read of its own; until then the gradients must stay as they are.
  Measurement* measurement_for(const StepOptions& options) { return needs_norm(options) ? &norm_ : nullptr; }

  /// Steps applied so far. Set on resume, next to the slots (which hold AdamW's count for each parameter).
  std::int64_t steps() const noexcept { return steps_; }
  void set_steps(std::int64_t steps);  ///< for a resume
  /// The source's; the state is on its device.
  kernels::Backend& backend() const { return source().backend(); }
  /// The source's.
  RunShape run() const { return source().run(); }

  /// The learning rate of steps that name none.
  double lr() const noexcept { return lr_; }
  void set_lr(double lr);  ///< of later steps without a schedule
  /// Parameters with other rates, from now on. Throws as factors_of().
  void set_groups(std::span<const ParamGroup> groups);

  /// All state but steps(), by slot, as this process holds it; parameters in the model's order. Which slots
  /// and entries there are depends on the options and the model only. The tensors are handles to write into
  /// on resume; with a Partition they are parts. Not collective.
  std::vector<Slot> held_slots() const;
  /// The same as whole tensors: with a Partition copies in CPU memory, gathered from all ranks (so much for
  /// as long as they live).
  std::vector<Slot> slots() const;
  std::vector<Entry> replicated() const override;
  /// Of the slots, measured.
  StateBytes state_bytes() const;

  /// From now on step() updates the EMA weights of `ema` in the same pass over memory, bit-identical to
  /// ema.update(). Throws UsageError if one is attached already, its parameters
  /// are not all of these, or it was made with another Partition.
  void attach(Ema& ema);
  void detach() noexcept;  ///< ends what attach() began, as the end of either object does

 protected:
  /// Throws UsageError on a bad lr or group.
  Optimizer(GradientSource& source, double lr, double weight_decay, Decay decay,
            std::span<const ParamGroup> groups);
  /// Of options that have these members. Throws UsageError also for what option::check() finds.
  template <class Options>
  Optimizer(GradientSource& source, const Options& options)
      : Optimizer(source, options.lr, options.weight_decay, options.decay, options.groups) {
    option::check(options, "optimizer.");
  }

  /// What a step is for one parameter, which is trainable and has a gradient, and for its EMA weights.
  struct Update {
    std::size_t index = 0;      ///< of the parameter
    Tensor value, gradient;     ///< with a Partition the owned elements as vectors, which may be empty
    double lr = 0;              ///< group factor included
    double weight_decay = 0;    ///< 0 where the decay rule exempts it
    float gradient_factor = 1;  ///< divides the sum of gradients by the count, and clips
    std::span<const ops::EmaTarget> ema;  ///< those that follow in the same pass
    Tensor rounded;                       ///< gets the new value in bf16, if apply() can; may be none
  };
  /// Once a step, before all apply(): for what is known of all updates at once.
  virtual void prepare([[maybe_unused]] std::span<const Update> updates) {}
  /// Makes the updates: those of a whole step at once, or, with a Partition, one after another.
  virtual void apply(std::span<const Update> updates) = 0;

  /// The tensors of a slot by index of the parameter; none for those that have none in it.
  struct SlotTensors {
    std::string_view name;            ///< as PyTorch calls it
    std::span<const Tensor> tensors;  ///< one for each parameter
    bool per_element = true;  ///< one element for each that is updated; otherwise every process has all of it
  };
  virtual std::vector<SlotTensors> slot_tensors() const = 0;  ///< its state, for checkpoints and memory

  /// Those that are trained, in the order of the model.
  std::span<Param* const> params() const noexcept { return params_; }
  /// None: every rank has all of the state.
  const Partition* partition() const noexcept { return partition_; }
  /// Zeroed tensors for the elements that are updated, by index; none for frozen parameters, nor for those
  /// that `has` (by index; empty: all have one) is false for.
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

  /// Throws UsageError if it has been destroyed.
  GradientSource& source() const;

  GradientSource& source_;
  std::weak_ptr<const void> source_lives_;
  const Partition* partition_;
  std::vector<Param*> params_;
  std::vector<Member> members_;
  GradientNorm norm_;
  std::vector<Update> pending_;  // of the step at hand
  double lr_, weight_decay_;
  Decay decay_;
  std::int64_t steps_ = 0;
  Ema* ema_ = nullptr;
};

/// Rows of the options weight_decay and decay, as every optimizer has them. lr is the schedule's in a
/// configuration, and groups are keys of their own.
template <class Options>
std::vector<Option<Options>> decay_options() {
  return {option::number("weight_decay", &Options::weight_decay, Range::from(0, 1e38), "weight decay",
                         {.may_change = true, .peers = {"wd", "l2"}}),
          option::or_default(
              option::choice("decay", &Options::decay,
                             "which parameters decay; default: all for sgd, matrices for the others"))};
}

/// The algorithms that a configuration can name. An optimizer is made for a source, which must outlive it.
using Registry = lockstep::Registry<Optimizer, GradientSource&>;
/// One of them, with its keys of [optimizer].
using Algorithm = Registry::Choice;

/// Adds the algorithms that every program has.
void add_built_in(Registry& registry);

/// Makes parameters undivided that the algorithm takes whole: before ddp::DataParallel divides the model
/// among ranks. Throws UsageError if options do not fit the model.
void prepare_model(const Algorithm& algorithm, const ModelState& model);
/// Float32 elements that it keeps of a model's parameters, all ranks together; 0: not known.
std::int64_t elements_of_state(const Algorithm& algorithm, const ModelState& model);

}  // namespace lockstep::optim
