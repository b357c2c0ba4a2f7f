// Captured work, and graphs of it.
#include "capture.h"

#include <algorithm>
#include <utility>

#include "runtime.h"
#include "streams.h"

namespace lockstep::emulated_gpu {

std::size_t Capture::join(cudaStream_t stream) {
  streams_.push_back(stream);
  program_->devices.push_back(device_of(stream));
  for (Counts& counts : known_) counts.push_back(0);
  known_.emplace_back(streams_.size());
  return streams_.size() - 1;
}

void Capture::add(Program::Node node) {
  ++known_[node.branch][node.branch];
  program_->nodes.push_back(std::move(node));
}

void Capture::work(std::size_t branch, std::function<void()> work) {
  add({.kind = Program::Node::Kind::work, .branch = branch, .work = std::move(work), .call = nullptr});
}

void Capture::call(std::size_t branch, std::function<void(cudaStream_t)> call) {
  add({.kind = Program::Node::Kind::call, .branch = branch, .work = nullptr, .call = std::move(call)});
}

std::size_t Capture::mark(std::size_t branch) {
  known_at_mark_.push_back(known_[branch]);
  const std::size_t number = program_->mark_of.size();
  program_->mark_of.push_back(branch);
  // No node that others would have to wait for.
  program_->nodes.push_back({.kind = Program::Node::Kind::mark,
                             .branch = branch,
                             .mark = number,
                             .work = nullptr,
                             .call = nullptr});
  return number;
}

void Capture::wait(std::size_t branch, std::size_t mark) {
  const Counts& there = known_at_mark_[mark];
  for (std::size_t b = 0; b < there.size(); ++b) known_[branch][b] = std::max(known_[branch][b], there[b]);
  program_->nodes.push_back(
      {.kind = Program::Node::Kind::wait, .branch = branch, .mark = mark, .work = nullptr, .call = nullptr});
}

bool Capture::owns(const void* first) const {
  return std::find(program_->memory.begin(), program_->memory.end(), first) != program_->memory.end();
}

namespace {
thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;
}

cudaStreamCaptureMode capture_mode() { return mode_of_thread; }

bool Capture::joined() const {
  for (std::size_t b = 0; b < known_.size(); ++b) {
    if (known_[0][b] != known_[b][b]) return false;
  }
  return true;
}

}  // namespace lockstep::emulated_gpu

using namespace lockstep::emulated_gpu;

struct CUgraph_st {
  std::shared_ptr<Program> program;
};
struct CUgraphExec_st {
  std::shared_ptr<Program> program;
  std::vector<cudaStream_t> branches;  ///< but the first
  std::vector<cudaEvent_t> marks;
};

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);
  if (!stream) return failed(cudaErrorStreamCaptureUnsupported);
  if (mode != cudaStreamCaptureModeThreadLocal) return failed(cudaErrorNotSupported);
  if (capture_of(stream) || capture_of_thread()) return failed(cudaErrorIllegalState);
  begin_capture(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Turn turn = take_turn();
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);
  const Capture* const capture = capture_of(stream);
  *status = !capture           ? cudaStreamCaptureStatusNone
            : capture->valid() ? cudaStreamCaptureStatusActive
                               : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Turn turn = take_turn();
  *graph = nullptr;
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);
  const Capture* const capture = capture_of(stream);
  if (!capture) return failed(cudaErrorIllegalState);
  if (capture->streams().front() != stream) return failed(cudaErrorStreamCaptureUnmatched);
  if (capture->thread() != std::this_thread::get_id()) return failed(cudaErrorStreamCaptureWrongThread);
  const bool valid = capture->valid(), joined = capture->joined();
  auto program = end_capture(stream);
  if (!valid) return failed(cudaErrorStreamCaptureInvalidated);
  if (!joined) return failed(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::move(program)};
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Turn turn = take_turn();
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  if (spoils_capture()) return failed(cudaErrorStreamCaptureUnsupported);
  if (flags != 0) return failed(cudaErrorNotSupported);
  auto* const exec = *made = new CUgraphExec_st{graph->program, {}, {}};
  const Program& program = *graph->program;
  exec->branches.resize(program.devices.size() - 1);
  for (std::size_t branch = 1; branch < program.devices.size(); ++branch) {
    const WithDevice device(program.devices[branch]);
    cudaStreamCreateWithFlags(&exec->branches[branch - 1], cudaStreamNonBlocking);
  }
  exec->marks.resize(program.mark_of.size());
  for (std::size_t mark = 0; mark < program.mark_of.size(); ++mark) {
    const WithDevice device(program.devices[program.mark_of[mark]]);
    cudaEventCreateWithFlags(&exec->marks[mark], cudaEventDisableTiming);
  }
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);
  if (spoils_capture() || capture_of(stream)) return failed(cudaErrorStreamCaptureUnsupported);
  if (faults().launches != cudaSuccess) return failed(faults().launches);
  if (exec->program->devices.front() != device_of(stream))
    refuse("a graph that another device launches is not emulated");
  using Kind = Program::Node::Kind;
  for (const Program::Node& node : exec->program->nodes) {
    const cudaStream_t branch = node.branch == 0 ? stream : exec->branches[node.branch - 1];
    switch (node.kind) {
      case Kind::work:
        enqueue(branch, [program = exec->program, &node] { node.work(); });
        break;
      case Kind::mark:
        cudaEventRecord(exec->marks[node.mark], branch);
        break;
      case Kind::wait:
        cudaStreamWaitEvent(branch, exec->marks[node.mark], 0);
        break;
      case Kind::call:
        node.call(branch);
        break;
    }
  }
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  const Turn turn = take_turn();
  if (spoils_capture()) return failed(cudaErrorStreamCaptureUnsupported);
  for (const cudaStream_t branch : exec->branches) cudaStreamDestroy(branch);
  for (const cudaEvent_t mark : exec->marks) cudaEventDestroy(mark);
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(mode_of_thread, *mode);
  return cudaSuccess;
}

}  // extern "C"
