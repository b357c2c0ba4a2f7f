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

  void begin_step();
  /// The shards of the step, in order, before choose().
  void add_shard(std::int64_t index, std::span<const Tensor> tensors);
  enum class Way { refused, plain, capture, launch };  // ranks agree on the lowest of their choices
  /// Once a step; the same on all ranks. warm: this step does the same work as the last one.
  Way choose(bool warm);
  /// The step has failed on this rank before choose().
  void fail();

  /// Captures work(), whose usage is recorded. False, on all ranks, if a rank cannot: steps are plain from
  /// now on.
  bool capture(const std::function<void()>& work, const Usage& usage);
  /// Launches the graph. Returns the usage of the step that was captured.
  const Usage& launch();
  /// Steps are plain from now on.
  void refuse(std::string reason);
  /// Throws UsageError if graphs were refused but required (Graph::always).
  void check_refusal() const;

 private:
  using Key = std::vector<std::uintptr_t>;
  struct Known {
    Key key;
    std::unique_ptr<kernels::Graph> graph;  ///< null: this step has run once
    Usage usage;
  };
  static constexpr std::size_t max_known = 8;

  void add_to_key(const Tensor& tensor);
  Way choose_alone(bool warm);
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
  Key key_;
  Known* current_ = nullptr;
  bool has_chosen_ = false;
  std::vector<int> by_rank_;
};

}  // namespace lockstep::ddp
