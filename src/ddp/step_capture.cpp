#include "ddp/step_capture.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::ddp {
namespace {

/// Why no step can be captured; empty: no reason is known.
std::string obstacle(const Options& options, comm::GradientTransport& transport, const ModelState& model) {
  if (options.hook) return "a hook sends gradients";
  if (options.sharded_optimizer) return "ddp.sharded_optimizer = true: parameters arrive during the step";
  if (model.meets_across_ranks) return "layers communicate in the passes (model.batch_norm = sync)";
  if (transport.group().size() == 1) return {};
  if (!transport.may_be_captured()) return "this transport's sums cannot be repeated by the device alone";
  if (options.graph == Graph::automatic)
    return "there are several ranks, whose sums are captured only with train.cuda_graph = true";
  return {};
}

}  // namespace

StepCapture::StepCapture(const Options& options, comm::GradientTransport& transport,
                         kernels::Backend& backend, const ModelState& model)
    : graph_(options.graph), transport_(transport), backend_(backend), model_(model) {
  if (graph_ == Graph::never) return;
  if (!backend.captures_graphs()) {
    if (graph_ == Graph::automatic) return;  // a CPU cannot capture graphs
    throw UsageError(
        "train.cuda_graph = true: only a GPU's steps can be captured, and this backend is on {}; use auto",
        to_string(backend.device()));
  }
  so_far_.refused = obstacle(options, transport, model);
  enabled_ = so_far_.refused.empty();
  check_refusal();
}

void StepCapture::check_refusal() const {
  if (graph_ == Graph::always && !so_far_.refused.empty())
    throw UsageError("train.cuda_graph = true, but the step cannot be captured: {}; use auto",
                     so_far_.refused);
}

void StepCapture::begin_step(std::uint64_t step) {
  step_ = step;
  key_.clear();
  current_ = nullptr;
  has_chosen_ = false;
}

void StepCapture::add_to_key(const Tensor& tensor) {
  key_.push_back(reinterpret_cast<std::uintptr_t>(tensor.raw()));
  key_.push_back(tensor.bytes());
}

void StepCapture::add_shard(std::int64_t index, std::span<const Tensor> tensors, bool ragged) {
  is_ragged_ = is_ragged_ || ragged;
  key_.push_back(static_cast<std::uintptr_t>(index));
  for (const Tensor& tensor : tensors) {
    add_to_key(tensor);
    for (const std::int64_t extent : tensor.shape()) key_.push_back(static_cast<std::uintptr_t>(extent));
  }
}

StepCapture::Way StepCapture::choose(bool warm) {
  if (!enabled_) return Way::plain;
  Way way = choose_alone(warm);
  if (has_peers()) way = static_cast<Way>(lowest(static_cast<int>(way)));
  if (way == Way::refused && enabled_) refuse("another rank cannot");
  return way == Way::refused ? Way::plain : way;
}

StepCapture::Way StepCapture::choose_alone(bool warm) {
  if (key_.empty()) {
    refuse("the shards of the batch have no tensors() that identify it");
    return Way::refused;
  }
  if (is_ragged_) {
    refuse("samples differ in size");
    return Way::refused;
  }
  if (!warm) return Way::plain;
  for (const Param* const param : model_.params) add_to_key(param->value);
  for (const Buffer* const buffer : model_.buffers) add_to_key(buffer->value);
  const auto found = std::ranges::find(known_, key_, &Known::key);
  if (found != known_.end()) {
    current_ = &*found;
    return current_->graph ? Way::launch : Way::capture;
  }
  if (known_.size() == max_known) {
    refuse("its batches or its parameters have new addresses in every step");
    return Way::refused;
  }
  known_.reserve(max_known);
  known_.push_back({.key = key_, .graph = nullptr, .usage = Usage(0, 0)});
  return Way::plain;
}

int StepCapture::lowest(int mine) {
  has_chosen_ = true;
  by_rank_.resize(static_cast<std::size_t>(transport_.group().size()));
  transport_.group().all_gather(&mine, sizeof mine, by_rank_.data());
  return *std::ranges::min_element(by_rank_);
}

void StepCapture::fail() {
  if (enabled_ && has_peers() && !has_chosen_) lowest(static_cast<int>(Way::plain));
}

void StepCapture::run(bool warm, const StepWork& work) {
  const Way way = choose(warm);
  work.refresh_weights(false);  // also frozen ones, which an evaluation may have replaced
  if (way == Way::launch) return launch(work);
  if (way == Way::capture) {
    if (capture(work)) {
      try {
        return launch(work);
      } catch (const std::exception& error) {  // the device has no memory for it
        if (has_peers()) throw;
        refuse(error.what());
      }
    }
    work.refresh_weights(true);  // some may have been part of the capture
    work.begin_again();
  }
  work.passes();
  check_refusal();
}

bool StepCapture::capture(const StepWork& work) {
  std::unique_ptr<kernels::Graph> graph;
  std::string refused;
  work.clear();  // tensors of earlier passes are not part of the graph
  try {
    const std::unique_ptr<kernels::GraphCapture> capture = backend_.capture_graph(step_);
    work.begin_capture();
    work.passes();
    work.end_capture();
    graph = capture->finish();
  } catch (const std::exception& error) {
    refused = error.what();
  }
  const bool all = !has_peers() || lowest(refused.empty() ? 1 : 0) == 1;
  if (!all && refused.empty()) refused = "another rank cannot";
  if (refused.empty()) {
    current_->graph = std::move(graph);
    current_->usage = work.usage();
    ++so_far_.captures;
  } else {
    graph.reset();
    refuse(std::move(refused));
  }
  work.clear();
  return current_ != nullptr;
}

void StepCapture::refuse(std::string reason) {
  enabled_ = false;
  so_far_.refused = std::move(reason);
  known_.clear();
  current_ = nullptr;
}

void StepCapture::launch(const StepWork& work) {
  work.launch(*current_->graph, current_->usage);
  ++so_far_.launches;
}

}  // namespace lockstep::ddp
