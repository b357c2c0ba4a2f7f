// The named leaves of a model: parameters, buffers, and statistics that are summed over shards.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

struct ForeignWeights;

class Tape;
struct Param;
namespace kernels {
class Backend;
}

/// Parameter values that other ranks are still sending.
class PendingValues {
 public:
  virtual ~PendingValues() = default;
  /// Returns when the whole value of the parameter has arrived. Throws FailureError if the transport fails.
  virtual void wait_for(const Param& param) = 0;
};

/// State that belongs to parameters, such as EMA weights or the state of an optimizer. Its parameters refer
/// to it, so that ddp::DataParallel can send it to all ranks and compare it between them.
class ParamState {
 public:
  /// One tensor of the state.
  struct Entry {
    std::string name;  ///< as in a checkpoint: "ema/0.99/fc.weight"
    Tensor tensor;     ///< a handle
  };
  ParamState() = default;
  virtual ~ParamState() = default;
  ParamState(const ParamState&) = delete;
  ParamState& operator=(const ParamState&) = delete;
  /// The tensors that every rank holds whole, with equal values. Not collective.
  virtual std::vector<Entry> replicated() const = 0;

 protected:
  void belong_to(std::span<Param* const> params) const;  ///< registers it with these parameters

 private:
  std::shared_ptr<const ParamState> self_{std::make_shared<char>(), this};  // expires with this object
};

/// A parameter. Its owner (an nn::Module) gives it a stable address for its lifetime; other code refers to
/// it by pointer.
struct Param {
  /// Its position in the model, for update rules that treat weights between layers differently.
  enum class Role {
    inner,
    embedding,  ///< a table of rows, also if a head is tied to it
    head,       ///< of the output layer
  };

  std::string name;         ///< from the module tree: "layer1.0.conv1.weight"
  Role role = Role::inner;  ///< read by optimizers such as Muon
  /// float32. With a sharded optimizer, part of it may still be arriving after a step: call wait_ready()
  /// before reading or writing it outside a Tape. Training may move it to other memory: do not keep handles.
  Tensor value;
  /// The sum over the global batch of the last step; absent if no rank had a gradient, or before the first
  /// step. With a sharded optimizer only the elements that this rank owns (GradientSource::partition()) hold
  /// it.
  Tensor gradient;
  bool trainable = true;  ///< false: frozen; it gets no gradient and no update
  /// With a sharded optimizer one rank updates all of it, for a rule that needs the whole tensor; otherwise
  /// ranks share its elements. Set before ddp::DataParallel makes the Partition, the same on every rank.
  bool undivided = false;
  PendingValues* pending_values = nullptr;  ///< set by a sharded optimizer's DataParallel
  bool swapped_in = false;  ///< `value` is an EMA weight for now (optim::Ema::swap_in): no step, save or load
  std::vector<std::weak_ptr<const ParamState>> states;  ///< of this parameter; some may have expired

  /// The value in bf16, for a tape that trains in bf16 on a GPU. An optimizer's step may write it together
  /// with the value, so that the next pass need not round the value. Absent where the last copy has another
  /// layout (Tape::convolution_weight). All other writes of the value must
  /// be operations of a kernels::Backend (an own kernel by Backend::enter()): the tape sees these, and rounds
  /// again.
  Tensor rounded;

  /// Waits until the whole value has arrived.
  void wait_ready() const {
    if (pending_values) pending_values->wait_for(*this);
  }

  /// Bookkeeping of the Tape that records a pass over this parameter; private to it.
  struct OnTape {
    Tape* tape = nullptr;  ///< the tape that uses it; null: none
    int id = -1;           ///< its number on that tape
    int open_uses = 0;     ///< recorded uses whose backward has not run
    bool written = false;  ///< a gradient has been written in this pass
  } on_tape;               ///< its use in the pass that is being recorded

  /// Unregisters from the tape that recorded it, so a model may be destroyed before its tape.
  ~Param();
};

inline void ParamState::belong_to(std::span<Param* const> params) const {
  for (Param* const param : params) {
    std::erase_if(param->states, [](const auto& state) { return state.expired(); });
    param->states.push_back(self_);
  }
}

/// State that is saved but not trained: running statistics, counters.
struct Buffer {
  std::string name;  ///< full dotted name, such as layer1.0.bn1.running_mean
  Tensor value;      ///< float32 or int64
  /// A file of weights may lack it: a load keeps its value.
  bool optional = false;
};

/// A float64 vector that each shard contributes to in its forward pass and that is needed as a sum over all
/// shards of the step (batch-norm moments). It is summed along the same tree as gradients.
class Statistic {
 public:
  virtual ~Statistic() = default;
  virtual const std::string& name() const = 0;  ///< full dotted name
  virtual std::int64_t elements() const = 0;    ///< the number of sums
  /// Whether its layer currently communicates with other ranks (nn::Module::meets_across_ranks()).
  virtual bool meets_across_ranks() const { return false; }
  /// False while its layer contributes nothing: the state of the model leaves it out.
  virtual bool is_used() const { return true; }
  /// Takes the sum over all shards, float64 [elements] on the backend's device, once per step, on every rank.
  virtual void apply(kernels::Backend& backend, const Tensor& total) = 0;
};

/// All leaves of a model, in the order of its module tree. nn::Module converts to it, so a function of a
/// ModelState takes a model.
struct ModelState {
  std::vector<Param*> params;          ///< in the order of PyTorch's state_dict
  std::vector<Buffer*> buffers;        ///< saved but not trained: running statistics
  std::vector<Statistic*> statistics;  ///< in use; summed over all shards, as gradients are
  /// A layer communicates with other ranks within a training pass (nn::Module::meets_across_ranks()).
  bool meets_across_ranks = false;
  /// The backend of the device that holds the values, for copies; null: they are in CPU memory.
  kernels::Backend* backend = nullptr;
  /// How files of other programs differ (nn/foreign_weights.h); null: they do not.
  const ForeignWeights* foreign = nullptr;
};

/// Whether EMA weights are swapped in for parameters of the model: a load would write into the EMA.
inline bool swapped_in(const ModelState& model) {
  return std::ranges::any_of(model.params, &Param::swapped_in);
}

}  // namespace lockstep
