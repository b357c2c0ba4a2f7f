// StepCapture: decides which steps are captured as a graph, and holds the graphs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ddp/step_header.h"
#include "lockstep/autograd/param.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/ddp/options.h"
#include "lockstep/ddp/step.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::ddp {

/// The work of a step that a graph can repeat: forward, backward and the sums of gradients. Step header,
/// optimizer and averages come after it.
struct StepWork {
  const std::function<void()>& passes;            ///< forward and backward of all shards; starts the sums
  std::function<void(bool all)> refresh_weights;  ///< copies of weights that are older than these
  std::function<void()> begin_capture;            ///< before the passes within a capture
  std::function<void()> end_capture;              ///< after them: the device waits for the sums
  std::function<void()> clear;                    ///< frees the tensors of passes
  std::function<void()> begin_again;              ///< forgets the passes of a capture that failed
  std::function<const Usage&()> usage;            ///< which gradients the passes wrote
  std::function<void(kernels::Graph&, const Usage&)> launch;  ///< a graph of passes with this usage
};

/// A step is identified by the memory that it uses: the tensors of its shards, which rotate over a few
/// buffers of a loader, parameters and buffers. The second time, a step is captured; later its graph is
/// launched.
class StepCapture {
 public:
  /// Throws UsageError if Options::graph requires a graph that is impossible. All but options must outlive
  /// this.
  StepCapture(const Options& options, comm::GradientTransport& transport, kernels::Backend& backend,
              const ModelState& model);

  /// Whether steps may be captured, so that add_shard() needs their shards.
  bool enabled() const { return enabled_; }
  const CapturedSteps& so_far() const { return so_far_; }

  void begin_step(std::uint64_t step);
  /// The shards of the step, in order, before run(). ragged: its samples differ in size, so that no graph of
  /// it fits another step.
  void add_shard(std::int64_t index, std::span<const Tensor> tensors, bool ragged);
  /// Does the work of the step, once a step: by its passes, or by a graph, which is captured first if need
  /// be. The same way on all ranks. warm: this step does the same work as the last one. Throws what the work
  /// throws, UsageError if a graph is required (Graph::always) and impossible.
  void run(bool warm, const StepWork& work);
  /// The step has failed on this rank before run().
  void fail();

 private:
  enum class Way { refused, plain, capture, launch };  // ranks agree on the lowest of their choices
  using Key = std::vector<std::uintptr_t>;
  struct Known {
    Key key;
    std::unique_ptr<kernels::Graph> graph;  ///< null: this step has run once
    Usage usage;
  };
  static constexpr std::size_t max_known = 8;

  void add_to_key(const Tensor& tensor);
  Way choose(bool warm);
  Way choose_alone(bool warm);
  /// False, on all ranks, if a rank cannot capture: steps are plain from now on.
  bool capture(const StepWork& work);
  void launch(const StepWork& work);
  /// Steps are plain from now on.
  void refuse(std::string reason);
  void check_refusal() const;
  /// The lowest number of any rank.
  int lowest(int mine);
  bool has_peers() const { return transport_.group().size() > 1; }

  Graph graph_;
  comm::GradientTransport& transport_;
  kernels::Backend& backend_;
  const ModelState& model_;
  bool enabled_ = false;
  CapturedSteps so_far_;
  std::vector<Known> known_;
  // of the current step
  std::uint64_t step_ = 0;
  Key key_;
  bool is_ragged_ = false;  // or was an earlier one: their shapes differ, so none is captured
  Known* current_ = nullptr;
  bool has_chosen_ = false;
  std::vector<int> by_rank_;
};

}  // namespace lockstep::ddp
