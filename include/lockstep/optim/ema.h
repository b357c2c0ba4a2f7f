// Ema: exponential moving averages of a model's parameters, at any number of rates at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/autograd/param.h"
#include "lockstep/autograd/partition.h"
#include "lockstep/base/option.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/ops/update.h"

namespace lockstep::optim {

class Optimizer;

/// Makes EMA weights follow quickly at first: update n (from 1) has s = n - update_after - 1; decay 0 (a
/// copy) while s <= 0, then min(rate, 1 - (1 + s / inv_gamma)^-power) (Crowson's k-diffusion, ema-pytorch,
/// timm).
struct EmaWarmup {
  double inv_gamma = 1;           ///< divides the number of updates
  double power = 2.0 / 3;         ///< the exponent
  std::int64_t update_after = 0;  ///< updates in which the EMA is a copy
};

/// How EMA weights forget: the decay of each update. A plain rate converts to it.
class EmaProfile {
 public:
  /// The same decay in every update. Throws UsageError unless 0 <= rate < 1.
  EmaProfile(double rate);  // NOLINT(google-explicit-constructor): {0.99, 0.999} is how rates are written
  /// Power-function profile of relative width sigma_rel: decay (1 - 1 / n)^(gamma + 1) in update n, where
  /// sigma_rel^2 = (gamma + 1) / ((gamma + 2)^2 (gamma + 3)) (Karras et al., "Analyzing and improving the
  /// training dynamics of diffusion models", CVPR 2024). Throws UsageError unless 0 < sigma_rel < 0.28.
  static EmaProfile power(double sigma_rel);
  /// From a name, however the number is written: "0.990", "sigma_rel=0.10". Throws UsageError on others.
  static EmaProfile named(std::string_view name);

  /// Canonical and shortest: "0.99", "sigma_rel=0.05"; the name in checkpoints.
  const std::string& name() const noexcept { return name_; }
  bool is_power() const noexcept { return power_; }  ///< whether its width grows with the training so far
  /// The rate, or sigma_rel.
  double parameter() const noexcept { return parameter_; }
  /// Exponent of a power-function profile; 0 of a plain rate.
  double gamma() const noexcept { return gamma_; }
  /// Decay of update n (from 1). Warm-up applies to plain rates only.
  double decay(std::int64_t n, const std::optional<EmaWarmup>& warmup = {}) const;

 private:
  EmaProfile() = default;
  std::string name_;
  double parameter_ = 0;
  double gamma_ = 0;
  bool power_ = false;
};

/// What EMA weights hold of buffers (running statistics, counters).
enum class EmaBuffers {
  copy,     ///< the model's, as of the last update
  average,  ///< averages of float32 ones as if parameters; others as with copy
  leave,    ///< nothing: wherever EMA weights are used, the model's own buffers are
};

constexpr auto words(EmaBuffers) { return std::array{"copy", "average", "leave"}; }  ///< of a configuration

/// How EMA weights are kept.
struct EmaOptions {
  std::optional<EmaWarmup> warmup = {};   ///< of rates: follows the parameters quickly at first
  EmaBuffers buffers = EmaBuffers::copy;  ///< what happens to buffers of the model
  /// Of the source of gradients (GradientSource::partition()): this process holds EMA weights of the elements
  /// it owns only. It is copied. None: of all.
  const Partition* partition = nullptr;

  static std::vector<Option<EmaOptions>> options();  ///< all but `partition`
  void check() const;                                ///< throws Misfit
};

/// Bytes of a state of which ranks may hold a part each.
struct StateBytes {
  std::size_t held = 0;   ///< by this process
  std::size_t whole = 0;  ///< of all of it
};

/// One EMA tensor, for checkpoints: /ema/RATE/NAME.
struct EmaTensor {
  std::string rate;                        ///< EmaProfile::name()
  std::string name;                        ///< of the parameter or buffer
  Tensor tensor;                           ///< of its shape; float32, or its dtype for a buffer
  bool averaged;                           ///< otherwise a copy of the model's, as of the last update
  std::optional<PartitionView> part = {};  ///< of what `tensor` is a part; none: it is whole
};

/// EMA weights of all parameters, frozen ones too, and of buffers as EmaOptions say. They start as copies of
/// the model and never influence training. Parameters and buffers must outlive it; their number is fixed. A
/// ddp::DataParallel that is made later gives every rank the EMA weights of rank 0, as it does the model.
///
/// With a Partition each rank holds EMA weights of the elements it owns (of buffers: of all), bit-identical
/// to those without one. tensors(), tensor() and swap_in() then gather whole tensors and are collective.
class Ema final : public ParamState {
 public:
  /// Throws UsageError on two equal profiles, a warm-up with inv_gamma <= 0, power < 0 or update_after < 0,
  /// or a Partition of another model.
  Ema(const ModelState& state, kernels::Backend& backend, std::vector<EmaProfile> profiles,
      EmaOptions options = {});
  ~Ema() override;
  /// With the backend of the model's device, or with its own one-threaded CPU backend.
  Ema(const ModelState& state, std::vector<EmaProfile> profiles, EmaOptions options = {});

  /// Updates all EMA weights, once after each optimizer step. Throws UsageError when an optimizer does it
  /// (Optimizer::attach), or while EMA weights are swapped in.
  void update();

  /// Updates so far; set on resume, after the EMA weights have been filled.
  std::int64_t updates() const noexcept { return updates_; }
  void set_updates(std::int64_t updates);  ///< for a resume
  /// Makes them copies of the model again, for EMA weights that begin in the middle of a run.
  void reset();
  /// Makes those of one rate copies of the model; the number of updates stays. UsageError naming what there
  /// is.
  void reset(std::string_view rate);

  /// Of the device on which the EMA weights are.
  kernels::Backend& backend() const noexcept { return backend_; }
  std::span<const EmaProfile> profiles() const noexcept { return profiles_; }  ///< one for each EMA
  const EmaOptions& options() const noexcept { return options_; }              ///< as they were given
  /// All EMA weights as this process holds them: profile by profile, parameters then buffers in the model's
  /// order. The tensors are handles to write into on resume; with a Partition those of parameters are parts.
  /// Not collective.
  std::vector<EmaTensor> held_tensors() const;
  /// The same as whole tensors: with a Partition copies in CPU memory (so much for as long as they live).
  std::vector<EmaTensor> tensors() const;
  /// One EMA tensor. Throws UsageError naming what there is.
  Tensor tensor(std::string_view rate, std::string_view name) const;
  std::vector<Entry> replicated() const override;
  /// Of all EMA weights, measured.
  StateBytes state_bytes() const;

  /// While it lives, the model's parameters (and averaged buffers) are the EMA weights of one rate; steps of
  /// a DataParallel or an optimizer, and saves of a Store, are UsageErrors. The destructor restores the
  /// model's own. Only handles are swapped, no elements copied (with a Partition it holds the gathered EMA
  /// weights on the model's device, memory for one more model).
  class [[nodiscard]] SwappedIn {
   public:
    ~SwappedIn();
    SwappedIn(const SwappedIn&) = delete;
    SwappedIn& operator=(const SwappedIn&) = delete;

   private:
    friend class Ema;
    SwappedIn(Ema& ema, std::size_t profile);
    Ema& ema_;
    std::vector<Tensor> own_;  // the model's values, by leaf
  };
  /// For evaluation. Throws UsageError on an unknown rate, or if one is swapped in already, of any Ema.
  SwappedIn swap_in(std::string_view rate);

 private:
  friend class Optimizer;  // updates in the same pass over memory as the step
  struct Leaf {
    const std::string* name;
    Tensor* value;
    bool averaged;  // otherwise copied
  };

  Ema(const ModelState& state, std::unique_ptr<kernels::Backend> own_backend, kernels::Backend* backend,
      std::vector<EmaProfile> profiles, EmaOptions options);
  bool in_parts(std::size_t leaf) const { return partition_ && leaf < params_.size(); }
  /// The leaf's value, or with a Partition its owned elements as a vector.
  Tensor followed(std::size_t leaf) const;
  /// Of all leaves, profile by profile; those gathered are in CPU memory.
  std::vector<Tensor> whole_shadows(std::size_t first_profile, std::size_t profile_end) const;
  std::size_t leaf_named(std::string_view name) const;
  std::size_t profile_named(std::string_view rate) const;
  bool swapped_in() const { return !params_.empty() && params_[0]->swapped_in; }
  /// Starts an update: sets the decays. Throws when EMA weights are swapped in.
  void begin_update();
  /// Targets of a parameter (index in ModelState::params), one per profile.
  std::span<const ops::EmaTarget> targets(std::size_t leaf) const;
  /// Updates one leaf's EMA weights, in a separate pass.
  void update_leaf(std::size_t leaf);
  /// Ends an update in which the parameters are done: buffers, and the count.
  void finish_update();

  std::unique_ptr<kernels::Backend> own_backend_;
  kernels::Backend& backend_;
  std::vector<EmaProfile> profiles_;
  EmaOptions options_;
  std::optional<Partition> partition_;
  std::vector<Param*> params_;
  std::vector<Leaf> leaves_;             // parameters, then buffers
  std::vector<ops::EmaTarget> targets_;  // [leaf][profile]
  std::int64_t updates_ = 0;
  Optimizer* attached_to_ = nullptr;
};

/// How much a power-function average remembers of each moment tau in (0, t]: (gamma + 1) tau^gamma /
/// t^(gamma + 1), whose integral over update k is exactly the weight of that update after t of them
/// (Karras et al., "Analyzing and improving the training dynamics of diffusion models", CVPR 2024).
struct PowerResponse {
  double gamma = 0;    ///< the power of the profile
  double updates = 0;  ///< t

  bool operator==(const PowerResponse&) const = default;
};

/// Throws UsageError unless the profile is a power function and updates > 0.
PowerResponse response_of(const EmaProfile& profile, std::int64_t updates);

/// Integral of the product over the time that both have: with m the shorter of the two times,
/// (gamma_a + 1) (gamma_b + 1) m^(gamma_a + gamma_b + 1) /
/// ((gamma_a + gamma_b + 1) t_a^(gamma_a + 1) t_b^(gamma_b + 1)).
double inner_product(const PowerResponse& a, const PowerResponse& b);

/// A weighted sum of stored averages that replaces another one.
struct EmaMixture {
  std::vector<double> weights;  ///< of each stored one; their sum is 1
  /// |response of the mixture - response asked for| / |response asked for|. If the weights of the model
  /// were independent from step to step, this would be the relative error of the reconstructed weights;
  /// those of a real run change slowly, which makes it much smaller.
  double error = 0;
};

/// Finds mixtures of given averages by least squares in float64.
class EmaReconstruction {
 public:
  /// Throws UsageError if no average is given.
  explicit EmaReconstruction(std::vector<PowerResponse> stored);

  /// The mixture with the least error among those whose weights add up to 1, so that what never changed in
  /// training stays as it is. An average that is among the stored ones is that one alone.
  EmaMixture mixture_for(const PowerResponse& target) const;

 private:
  std::vector<double> solve(std::vector<double> right) const;

  std::vector<PowerResponse> stored_;
  std::vector<std::size_t> used_;  // indices of stored_; the others add nothing to these
  std::vector<double> scale_;      // of used_: 1 / |response|
  std::vector<double> factor_;     // Cholesky factor of the scaled inner products, rows by used_, packed
  std::vector<double> ones_;       // solution for right-hand sides of 1
};

}  // namespace lockstep::optim
