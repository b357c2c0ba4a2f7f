// StepRecorder: which steps are recorded, and the recordings.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ddp/usage.h"
#include "lockstep/autograd/param.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::ddp {

/// A step is known by the memory it works on: the tensors of its shards, which rotate over a few slots of a
/// loader, parameters and buffers. What has been met a second time is recorded, and replayed from then on.
class StepRecorder {
 public:
  /// Throws UsageError where Options::graph asks for what cannot be. All but options must outlive it.
  StepRecorder(const Options& options, comm::GradientTransport& communicator, kernels::Backend& backend,
               const ModelState& model);

  bool wanted() const { return wanted_; }
  const StepsRecorded& so_far() const { return so_far_; }

  void begin_step();
  /// Of one shard, in order.
  void note(std::int64_t index, const Tensor& x, const Tensor& y);
  enum class Way { refused, plain, record, replay };  // of several ranks the least is taken
  /// Once a step; the same on all ranks. warm: the work of this step is that of the last.
  Way choose(bool warm);
  /// The step has failed on this rank before it came to choose().
  void fail();

  /// The recording of this step's work, or why there is none (empty otherwise): the same on all ranks.
  bool keep(std::unique_ptr<kernels::Recording> recording, const Usage& usage, std::string refused);
  /// No recordings from now on.
  void refuse(std::string reason);
  /// Throws UsageError if they were asked for without condition.
  void check_refusal() const;
  /// Asks for the work. Returns what the recorded step had noted of parameters.
  const Usage& replay();

 private:
  using Key = std::vector<std::uintptr_t>;
  struct Known {
    Key key;
    std::unique_ptr<kernels::Recording> recording;  ///< none: met once
    Usage usage;
  };
  static constexpr std::size_t most_known = 8;

  void note(const Tensor& tensor);
  Way wish(bool warm);
  /// The least of what ranks say.
  int agree(int mine);
  bool ranks_must_agree() const { return wanted_ && communicator_.group().size() > 1; }

  Graph graph_;
  comm::GradientTransport& communicator_;
  kernels::Backend& backend_;
  const ModelState& model_;
  bool wanted_ = false;
  StepsRecorded so_far_;
  Key key_;  // of the step at hand
  std::vector<Known> known_;
  Known* at_ = nullptr;  // of the step at hand
  bool agreed_ = false;
  std::vector<int> said_;  // by rank
};

}  // namespace lockstep::ddp
