#include "kernels/cuda/recording.h"

#include <string>
#include <utility>

#include "kernels/cuda/error.h"
#include "lockstep/base/error.h"

namespace lockstep::kernels {
namespace {

class GraphRecording final : public Recording {
 public:
  GraphRecording(int device, cudaStream_t stream, cudaGraph_t graph) : device_(device), stream_(stream) {
    check(cudaGraphInstantiate(&graph_, graph, 0), "cudaGraphInstantiate", device_);
  }
  ~GraphRecording() override {
    cudaSetDevice(device_);
    cudaGraphExecDestroy(graph_);
    cudaDeviceGraphMemTrim(device_);
  }
  GraphRecording(const GraphRecording&) = delete;
  GraphRecording& operator=(const GraphRecording&) = delete;

  void replay() override {
    check(cudaSetDevice(device_), "cudaSetDevice", device_);
    const cudaError_t launched = cudaGraphLaunch(graph_, stream_);
    if (launched != cudaSuccess) cudaGetLastError();  // or the next launch takes it for its own
    check(launched, "cudaGraphLaunch", device_);
  }

 private:
  int device_;
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

class StreamRecorder final : public Recorder {
 public:
  StreamRecorder(int device, StreamPool& pool, bool& recording)
      : device_(device), pool_(pool), recording_(recording) {
    check(cudaSetDevice(device_), "cudaSetDevice", device_);
    pool_.begin_capture();
    // Only what this thread does is held to the rules of a capture: a loader's may wait for its copies.
    const cudaError_t begun = cudaStreamBeginCapture(pool_.stream(), cudaStreamCaptureModeThreadLocal);
    if (begun != cudaSuccess) pool_.end_capture();
    check(begun, "cudaStreamBeginCapture", device_);
    recording_ = true;
  }
  ~StreamRecorder() override { end(); }
  StreamRecorder(const StreamRecorder&) = delete;
  StreamRecorder& operator=(const StreamRecorder&) = delete;

  std::unique_ptr<Recording> finish() override {
    Ended ended = end();
    check(ended.status, "cudaStreamEndCapture", device_);
    if (!ended.kept.empty()) throw UsageError("{}", ended.kept);
    return std::make_unique<GraphRecording>(device_, pool_.stream(), ended.graph.get());
  }

 private:
  struct DestroyGraph {
    void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
  };
  using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;
  struct Ended {
    cudaError_t status = cudaSuccess;
    Graph graph;
    std::string kept;
  };

  Ended end() {
    Ended ended;
    if (!std::exchange(recording_, false)) return ended;
    cudaGraph_t graph = nullptr;
    ended.status = cudaStreamEndCapture(pool_.stream(), &graph);
    ended.graph.reset(graph);
    ended.kept = pool_.end_capture();
    cudaGetLastError();  // of what the capture's end, or an operation that broke it, has left there
    return ended;
  }

  int device_;
  StreamPool& pool_;
  bool& recording_;
};

}  // namespace

std::unique_ptr<Recorder> make_stream_recorder(int device, StreamPool& pool, bool& recording) {
  return std::make_unique<StreamRecorder>(device, pool, recording);
}

}  // namespace lockstep::kernels
