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

/// The decay of EMA weights in each update. A plain rate converts to it.
class EmaProfile {
 public:
  /// The same decay in every update. Throws UsageError unless 0 <= rate < 1.
  EmaProfile(double rate);  // NOLINT(google-explicit-constructor): {0.99, 0.999} is how rates are written
  /// Power-function profile of relative width sigma_rel: decay (1 - 1 / n)^(gamma + 1) in update n, where
  /// sigma_rel^2 = (gamma + 1) / ((gamma + 2)^2 (gamma + 3)) (Karras et al., "Analyzing and improving the
  /// training dynamics of diffusion models", CVPR 2024). Throws UsageError unless 0 < sigma_rel < 0.28.
  static EmaProfile power(double sigma_rel);
  /// From a name in any spelling of the number: "0.990", "sigma_rel=0.10". Throws UsageError on other texts.
  static EmaProfile named(std::string_view name);

  /// The shortest name: "0.99", "sigma_rel=0.05"; checkpoints use it.
  const std::string& name() const noexcept { return name_; }
  bool is_power() const noexcept { return power_; }  ///< whether it is a power-function profile
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

/// The EMA of buffers (running statistics, counters).
enum class EmaBuffers {
  copy,     ///< a copy of the model's, as of the last update
  average,  ///< float32 buffers are averaged like parameters; others are copied
  leave,    ///< none: EMA weights are used with the model's own buffers
};

constexpr auto words(EmaBuffers) { return std::array{"copy", "average", "leave"}; }  ///< of a configuration

/// The options of an Ema.
struct EmaOptions {
  std::optional<EmaWarmup> warmup = {};   ///< of plain rates: follows the parameters quickly at first
  EmaBuffers buffers = EmaBuffers::copy;  ///< the EMA of buffers
  /// The partition of the source of gradients (GradientSource::partition()), which is copied: this process
  /// holds EMA weights of the elements it owns only. Null: of all elements.
  const Partition* partition = nullptr;

  static std::vector<Option<EmaOptions>> options();  ///< all but `partition`
  void check() const;                                ///< throws Misfit
};

/// Bytes of a state that may be divided among ranks.
struct StateBytes {
  std::size_t held = 0;   ///< by this process
  std::size_t whole = 0;  ///< by all ranks together
};

/// One EMA tensor, for checkpoints: /ema/RATE/NAME.
struct EmaTensor {
  std::string rate;                        ///< EmaProfile::name()
  std::string name;                        ///< of the parameter or buffer
  Tensor tensor;                           ///< of its shape; float32, or its dtype for a buffer
  bool averaged;                           ///< false: a copy of the model's, as of the last update
  std::optional<PartitionView> part = {};  ///< if `tensor` is a part: its position in the whole
};

/// EMA weights of all parameters, frozen ones too, and of buffers according to EmaOptions. They start as
/// copies of the model and never influence training. Parameters and buffers must outlive it; their number is
/// fixed. A ddp::DataParallel that is constructed later gives every rank the model and the EMA weights of
/// rank 0.
/// With a Partition each rank holds EMA weights of the elements it owns, and of all buffers. The bits are
/// those without a Partition. tensors(), tensor() and swap_in() then gather whole tensors and are collective.
class Ema final : public ParamState {
 public:
  /// Throws UsageError on two equal profiles, a warm-up with inv_gamma <= 0, power < 0 or update_after < 0,
  /// or a Partition of another model.
  Ema(const ModelState& state, kernels::Backend& backend, std::vector<EmaProfile> profiles,
      EmaOptions options = {});
  ~Ema() override;
  /// Uses `backend`, that of the model's device; otherwise an own one-threaded CPU backend.
  Ema(const ModelState& state, std::vector<EmaProfile> profiles, EmaOptions options = {});

  /// Updates all EMA weights, once after each optimizer step. Throws UsageError when an optimizer does it
  /// (Optimizer::attach), or while EMA weights are swapped in.
  void update();

  /// Updates so far; set on resume, after the EMA weights have been filled.
  std::int64_t updates() const noexcept { return updates_; }
  void set_updates(std::int64_t updates);  ///< for a resume
  /// Copies the model again, for EMA weights that begin in the middle of a run.
  void reset();
  /// The same for one rate; the number of updates stays. UsageError with all rates if this one does not
  /// exist.
  void reset(std::string_view rate);

  /// The backend of the device that holds the EMA weights.
  kernels::Backend& backend() const noexcept { return backend_; }
  std::span<const EmaProfile> profiles() const noexcept { return profiles_; }  ///< one for each EMA
  const EmaOptions& options() const noexcept { return options_; }  ///< as passed to the constructor
  /// All EMA weights as this process holds them: profile by profile, parameters then buffers in the model's
  /// order. The tensors are handles to write into on resume; with a Partition those of parameters are parts.
  /// Not collective.
  std::vector<EmaTensor> held_tensors() const;
  /// The same as whole tensors: with a Partition copies in CPU memory.
  std::vector<EmaTensor> tensors() const;
  /// One EMA tensor. Throws UsageError if the rate or the name is unknown.
  Tensor tensor(std::string_view rate, std::string_view name) const;
  std::vector<Entry> replicated() const override;
  /// The memory of all EMA weights.
  StateBytes state_bytes() const;

  /// During its life, the model's parameters (and averaged buffers) are the EMA weights of one rate; steps of
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
  /// For evaluation. Throws UsageError on an unknown rate, or if EMA weights of any Ema are swapped in.
  SwappedIn swap_in(std::string_view rate);

 private:
  friend class Optimizer;  // updates in the same pass over memory as the step
  struct Leaf {
    const std::string* name;
    Tensor* value;
    bool averaged;  // false: copied
  };

  Ema(const ModelState& state, std::unique_ptr<kernels::Backend> own_backend, kernels::Backend* backend,
      std::vector<EmaProfile> profiles, EmaOptions options);
  bool in_parts(std::size_t leaf) const { return partition_ && leaf < params_.size(); }
  /// The leaf's value, or with a Partition its owned elements as a vector.
  Tensor followed(std::size_t leaf) const;
  /// The tensors of all leaves, profile by profile; gathered ones are in CPU memory.
  std::vector<Tensor> whole_shadows(std::size_t first_profile, std::size_t profile_end) const;
  std::size_t leaf_named(std::string_view name) const;
  std::size_t profile_named(std::string_view rate) const;
  bool swapped_in() const { return !params_.empty() && params_[0]->swapped_in; }
  /// Starts an update: sets the decays. Throws UsageError if EMA weights are swapped in.
  void begin_update();
  /// Targets of a parameter (index in ModelState::params), one per profile.
  std::span<const ops::EmaTarget> targets(std::size_t leaf) const;
  /// Updates one leaf's EMA weights, in a separate pass.
  void update_leaf(std::size_t leaf);
  /// Ends an update after the parameters: updates buffers and the count.
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

/// The weight of each time tau in (0, t] in a power-function average: (gamma + 1) tau^gamma / t^(gamma + 1),
/// whose integral over update k is exactly the weight of that update after t of them (Karras et al.,
/// "Analyzing and improving the training dynamics of diffusion models", CVPR 2024).
struct PowerResponse {
  double gamma = 0;    ///< the power of the profile
  double updates = 0;  ///< t

  bool operator==(const PowerResponse&) const = default;
};

/// Throws UsageError unless the profile is a power function and updates > 0.
PowerResponse response_of(const EmaProfile& profile, std::int64_t updates);

/// Integral of the product over the common time: with m the shorter of the two times, (gamma_a + 1) (gamma_b
/// + 1) m^(gamma_a + gamma_b + 1) / ((gamma_a + gamma_b + 1) t_a^(gamma_a + 1) t_b^(gamma_b + 1)).
double inner_product(const PowerResponse& a, const PowerResponse& b);

/// A weighted sum of stored averages that replaces another one.
struct EmaMixture {
  std::vector<double> weights;  ///< of each stored average; their sum is 1
  /// |response of the mixture - target response| / |target response|. If the weights of the model were
  /// independent from step to step, this would be the relative error of the reconstructed weights; those of a
  /// real run change slowly, which makes it much smaller.
  double error = 0;
};

/// Finds mixtures of stored averages by least squares in float64.
class EmaReconstruction {
 public:
  /// Throws UsageError if there are no averages.
  explicit EmaReconstruction(std::vector<PowerResponse> stored);

  /// The mixture with the smallest error whose weights add up to 1, so that values that never changed in
  /// training are preserved. A stored average is reproduced by itself alone.
  EmaMixture mixture_for(const PowerResponse& target) const;

 private:
  std::vector<double> solve(std::vector<double> right) const;

  std::vector<PowerResponse> stored_;
  std::vector<std::size_t> used_;  // indices of stored_ that are linearly independent
  std::vector<double> scale_;      // of used_: 1 / |response|
  std::vector<double> factor_;     // Cholesky factor of the scaled inner products, rows by used_, packed
  std::vector<double> ones_;       // solution for right-hand sides of 1
};

}  // namespace lockstep::optim
