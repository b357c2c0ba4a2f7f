// What streams are asked for while they are captured, to be carried out as often as the graph is launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "runtime.h"

namespace lockstep::emulated_gpu {

/// The captured work, in the order in which it was asked for. What graphs, and launches under way, share; its
/// memory goes with it.
struct Program {
  struct Node {
    enum class Kind { work, mark, wait, call };
    Kind kind = Kind::work;
    std::size_t branch = 0;  ///< 0: the stream of the launch
    std::size_t mark = 0;    ///< of a mark, or of a wait for one
    std::function<void()> work;
    std::function<void(cudaStream_t)> call;  ///< made at the launch, for the branch's stream
  };

  Program() = default;
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  std::vector<Node> nodes;
  std::vector<int> devices;          ///< of the branches' streams
  std::vector<std::size_t> mark_of;  ///< of each mark, the branch
  std::vector<void*> memory;
};

/// A capture under way. Its branches are the streams in it, the first that which it began on.
class Capture {
 public:
  Capture(cudaStream_t origin, std::thread::id thread)
      : thread_(thread), streams_{origin}, known_(1, std::vector<std::size_t>(1)) {
    program_->devices.push_back(device_of(origin));
  }

  std::size_t join(cudaStream_t stream);
  void work(std::size_t branch, std::function<void()> work);
  void call(std::size_t branch, std::function<void(cudaStream_t)> call);
  /// An event recorded: its number.
  std::size_t mark(std::size_t branch);
  void wait(std::size_t branch, std::size_t mark);
  void take_memory(void* first) { program_->memory.push_back(first); }
  bool owns(const void* first) const;

  /// Something was done that must not be done meanwhile: nothing comes of it.
  void invalidate() { valid_ = false; }
  bool valid() const { return valid_; }
  /// Everything is behind the first stream again.
  bool joined() const;
  std::thread::id thread() const { return thread_; }
  const std::vector<cudaStream_t>& streams() const { return streams_; }
  /// Null while it is under way.
  std::shared_ptr<Program> end() { return std::move(program_); }
  bool over() const { return !program_; }

 private:
  void add(Program::Node node);

  std::thread::id thread_;
  bool valid_ = true;
  std::vector<cudaStream_t> streams_;
  std::shared_ptr<Program> program_ = std::make_shared<Program>();
  using Counts = std::vector<std::size_t>;  // nodes, by branch
  std::vector<Counts> known_;               // by branch: of what comes before its next
  std::vector<Counts> known_at_mark_;
};

// --- streams.cpp
/// That which the stream is in; null: none.
Capture* capture_of(cudaStream_t stream);
/// The calling thread's; null: none.
Capture* capture_of_thread();
void begin_capture(cudaStream_t stream);
std::shared_ptr<Program> end_capture(cudaStream_t stream);
/// Of the calling thread, as cudaThreadExchangeStreamCaptureMode has it.
cudaStreamCaptureMode capture_mode();
/// Whether the calling thread is capturing, which what it asks for now spoils.
bool spoils_capture();

}  // namespace lockstep::emulated_gpu
