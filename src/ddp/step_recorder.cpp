#include "ddp/step_recorder.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::ddp {
namespace {

/// What stands against recordings from the start; empty: nothing.
std::string obstacle(const Options& options, comm::GradientTransport& communicator) {
  if (options.hook) return "a hook sends gradients in a way of its own";
  if (options.sharded_optimizer) return "ddp.sharded_optimizer = true: parameters arrive in the middle of it";
  if (options.layer_communicator) return "layers meet across ranks in it (model.batch_norm = sync)";
  if (communicator.group().size() == 1) return {};
  if (!communicator.records()) return "this transport's sums cannot be repeated by the device alone";
  if (options.graph == Graph::automatic)
    return "there are several ranks, whose sums are recorded only with train.cuda_graph = true";
  return {};
}

}  // namespace

StepRecorder::StepRecorder(const Options& options, comm::GradientTransport& communicator,
                           kernels::Backend& backend, const ModelState& model)
    : graph_(options.graph), communicator_(communicator), backend_(backend), model_(model) {
  if (graph_ == Graph::never) return;
  if (!backend.records()) {
    if (graph_ == Graph::automatic) return;  // nothing that anybody would expect
    throw UsageError(
        "train.cuda_graph = true: only a GPU's steps are recorded, and it computes on {}; use auto",
        to_string(backend.device()));
  }
  so_far_.refused = obstacle(options, communicator);
  wanted_ = so_far_.refused.empty();
  check_refusal();
}

void StepRecorder::check_refusal() const {
  if (graph_ == Graph::always && !so_far_.refused.empty())
    throw UsageError("train.cuda_graph = true, but the step cannot be recorded: {}; use auto",
                     so_far_.refused);
}

void StepRecorder::begin_step() {
  key_.clear();
  at_ = nullptr;
  agreed_ = false;
}

void StepRecorder::note(const Tensor& tensor) {
  key_.push_back(reinterpret_cast<std::uintptr_t>(tensor.raw()));
  key_.push_back(tensor.bytes());
}

void StepRecorder::note(std::int64_t index, const Tensor& x, const Tensor& y) {
  if (!wanted_) return;
  key_.push_back(static_cast<std::uintptr_t>(index));
  for (const Tensor* const tensor : {&x, &y}) {
    note(*tensor);
    for (int d = 0; d < tensor->shape().rank(); ++d)
      key_.push_back(static_cast<std::uintptr_t>(tensor->size(d)));
  }
}

StepRecorder::Way StepRecorder::choose(bool warm) {
  if (!wanted_) return Way::plain;
  const bool with_others = ranks_must_agree();
  Way way = wish(warm);
  if (with_others) way = static_cast<Way>(agree(static_cast<int>(way)));
  if (way == Way::refused && wanted_) refuse("another rank cannot");
  return way == Way::refused ? Way::plain : way;
}

StepRecorder::Way StepRecorder::wish(bool warm) {
  if (key_.empty()) {
    refuse("the shards of the batch have no tensors x and y by which to know it again");
    return Way::refused;
  }
  if (!warm) return Way::plain;
  for (const Param* const param : model_.params) note(param->value);
  for (const Buffer* const buffer : model_.buffers) note(buffer->value);
  const auto found = std::ranges::find(known_, key_, &Known::key);
  if (found != known_.end()) {
    at_ = &*found;
    return at_->recording ? Way::replay : Way::record;
  }
  if (known_.size() == most_known) {
    refuse("its batches, or its parameters, lie elsewhere at every step");
    return Way::refused;
  }
  known_.reserve(most_known);
  known_.push_back({.key = key_, .recording = nullptr, .usage = Usage(0, 0)});
  return Way::plain;
}

int StepRecorder::agree(int mine) {
  agreed_ = true;
  said_.resize(static_cast<std::size_t>(communicator_.group().size()));
  communicator_.group().all_gather(&mine, sizeof mine, said_.data());
  return *std::ranges::min_element(said_);
}

void StepRecorder::fail() {
  if (ranks_must_agree() && !agreed_) agree(static_cast<int>(Way::plain));
}

bool StepRecorder::keep(std::unique_ptr<kernels::Recording> recording, const Usage& usage,
                        std::string refused) {
  const bool others = communicator_.group().size() > 1 && agree(refused.empty() ? 1 : 0) == 0;
  if (others && refused.empty()) refused = "another rank cannot";
  if (!refused.empty()) {
    recording.reset();
    refuse(std::move(refused));
    return false;
  }
  at_->recording = std::move(recording);
  at_->usage = usage;
  ++so_far_.recordings;
  return true;
}

void StepRecorder::refuse(std::string reason) {
  wanted_ = false;
  so_far_.refused = std::move(reason);
  known_.clear();
  at_ = nullptr;
}

const Usage& StepRecorder::replay() {
  at_->recording->replay();
  ++so_far_.replays;
  return at_->usage;
}

}  // namespace lockstep::ddp
