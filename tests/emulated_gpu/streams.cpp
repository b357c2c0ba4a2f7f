// Streams as queues, events as places in them.
#include "streams.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "capture.h"
#include "counting.h"
#include "races.h"
#include "runtime.h"

namespace lockstep::emulated_gpu {
namespace {

/// One record of an event.
struct Record {
  CUstream_st* stream;
  std::uint64_t place;  ///< of the stream's pieces, from 1
  bool done = false;
  std::chrono::steady_clock::time_point when{};
};

struct Piece {
  std::function<void()> work;
  std::shared_ptr<Record> behind;  ///< or null: behind nothing but the piece before it
};

}  // namespace
}  // namespace lockstep::emulated_gpu

struct CUstream_st {
  int device = lockstep::emulated_gpu::current_device();
  std::deque<lockstep::emulated_gpu::Piece> waiting;
  std::uint64_t done = 0;  ///< pieces
  std::shared_ptr<lockstep::emulated_gpu::Capture> capture;
  std::size_t branch = 0;  ///< of the capture
  std::uint64_t asked() const { return done + waiting.size(); }
};
struct CUevent_st {
  int device = lockstep::emulated_gpu::current_device();
  bool timed = true, sleeps = false;
  std::shared_ptr<lockstep::emulated_gpu::Record> last;                 ///< null before the first
  std::shared_ptr<lockstep::emulated_gpu::Capture> captured = nullptr;  ///< that it was last recorded in
  std::size_t mark = 0;                                                 ///< there
};

namespace lockstep::emulated_gpu {
namespace {

enum class When { late, random, eager };

class Streams {
 public:
  Streams();

  Turn take_turn();
  std::uint64_t draw() { return random_(); }
  CUstream_st* make();
  /// Its work is done as late as any.
  void destroy(CUstream_st* stream);
  /// Null is the current device's default stream, which nothing orders with the others: they are all made not
  /// to block.
  CUstream_st* find(cudaStream_t stream);

  void ask(CUstream_st& stream, Piece piece);
  void finish(CUstream_st& stream, std::uint64_t place);
  void finish(const Record& record) { finish(*record.stream, record.place); }
  void finish_all(int device);
  /// Half of what is left up to there: whoever looks again and again sees the end of it.
  void go_on(CUstream_st& stream, std::uint64_t place);

 private:
  void take_mode(std::string mode);
  /// The next piece, and all that it waits for.
  void carry_out_one(CUstream_st& stream);
  void carry_out_some();
  template <class Call>
  void for_each(const Call& call) {
    for (CUstream_st& stream : defaults_) call(stream);
    for (CUstream_st* const stream : made_) call(*stream);
    for (const auto& stream : destroyed_) call(*stream);
  }

  std::recursive_mutex mutex_;
  When when_ = When::late;
  std::mt19937_64 random_;
  bool working_ = false;
  std::array<CUstream_st, 2> defaults_;  ///< by device
  std::set<CUstream_st*> made_;
  std::vector<std::unique_ptr<CUstream_st>> destroyed_;  ///< with work left
};

Streams::Streams() {
  const char* const mode = std::getenv("LOCKSTEP_EMULATED_GPU");
  take_mode(mode ? mode : "late");
  for (std::size_t device = 0; device < defaults_.size(); ++device)
    defaults_[device].device = static_cast<int>(device);
}

void Streams::take_mode(std::string mode) {
  const std::string with_seed = "random:", with_races = "+races";
  if (mode.ends_with(with_races)) {
    races().check(true);
    mode.resize(mode.size() - with_races.size());
  }
  ::setenv("LOCKSTEP_SPOIL_MEMORY", "1", 0);  // counted, it is zeros: libraries compute nothing there
  if (mode == "count") {
    counting().begin();
    when_ = When::eager;
  } else if (mode == "late") {
    when_ = When::late;
  } else if (mode == "eager") {
    when_ = When::eager;
  } else if (mode == "random") {
    when_ = When::random;
    const unsigned seed = std::random_device()();
    random_.seed(seed);
    std::fprintf(stderr, "LOCKSTEP_EMULATED_GPU=random:%u\n", seed);
  } else if (mode.rfind(with_seed, 0) == 0 && mode.size() > with_seed.size() &&
             mode.find_first_not_of("0123456789", with_seed.size()) == std::string::npos) {
    when_ = When::random;
    random_.seed(std::strtoull(mode.c_str() + with_seed.size(), nullptr, 10));
  } else {
    refuse("LOCKSTEP_EMULATED_GPU is late, random:SEED or eager, with +races or without; or count");
  }
}

Turn Streams::take_turn() {
  Turn turn(mutex_);
  if (when_ == When::random && !working_) carry_out_some();
  return turn;
}

CUstream_st* Streams::make() { return *made_.insert(new CUstream_st).first; }

void Streams::destroy(CUstream_st* stream) {
  made_.erase(stream);
  destroyed_.emplace_back(stream);
  std::erase_if(destroyed_, [](const auto& one) { return one->waiting.empty(); });
}

CUstream_st* Streams::find(cudaStream_t stream) {
  if (!stream) return &defaults_.at(static_cast<std::size_t>(current_device()));
  const auto found = made_.find(stream);
  return found == made_.end() ? nullptr : *found;
}

void Streams::ask(CUstream_st& stream, Piece piece) {
  stream.waiting.push_back(std::move(piece));
  if (when_ == When::eager) finish(stream, stream.asked());
}

void Streams::carry_out_one(CUstream_st& stream) {
  // What a record stands behind was asked for before: no piece waits for itself.
  if (const std::shared_ptr<Record> behind = stream.waiting.front().behind; behind && !behind->done)
    finish(*behind);
  const Piece piece = std::move(stream.waiting.front());
  stream.waiting.pop_front();
  const bool within_another = std::exchange(working_, true);
  if (piece.work) piece.work();
  working_ = within_another;
  ++stream.done;
}

void Streams::carry_out_some() {
  for (auto pieces = random_() % 4; pieces > 0; --pieces) {
    std::vector<CUstream_st*> ready;
    for_each([&](CUstream_st& stream) {
      if (stream.waiting.empty()) return;
      const auto& behind = stream.waiting.front().behind;
      if (!behind || behind->done) ready.push_back(&stream);
    });
    if (ready.empty()) return;
    carry_out_one(*ready[random_() % ready.size()]);
  }
}

void Streams::finish(CUstream_st& stream, std::uint64_t place) {
  while (stream.done < place) carry_out_one(stream);
}

void Streams::finish_all(int device) {
  for_each([&](CUstream_st& stream) {
    if (stream.device == device) finish(stream, stream.asked());
  });
}

void Streams::go_on(CUstream_st& stream, std::uint64_t place) {
  if (stream.done < place) finish(stream, stream.done + (place - stream.done + 1) / 2);
}

Streams& streams() {
  static Streams& made = *new Streams;  // threads may use it to the very end
  return made;
}

}  // namespace

Turn take_turn() { return streams().take_turn(); }
std::uint64_t draw() { return streams().draw(); }

bool known(cudaStream_t stream) { return streams().find(stream) != nullptr; }

int device_of(cudaStream_t stream) {
  const Turn turn = take_turn();
  const CUstream_st* const found = streams().find(stream);
  if (!found) refuse("work for a stream that is not there");
  return found->device;
}

void finish(cudaStream_t stream) {
  CUstream_st& found = *streams().find(stream);
  streams().finish(found, found.asked());
}

void finish_all(int device) { streams().finish_all(device); }

void enqueue(cudaStream_t stream, std::function<void()> work) {
  const Turn turn = take_turn();
  CUstream_st* const found = streams().find(stream);
  if (!found) refuse("work for a stream that is not there");
  if (!found->capture) return streams().ask(*found, {.work = std::move(work), .behind = nullptr});
  if (!found->capture->valid()) failed(cudaErrorStreamCaptureInvalidated);
  found->capture->work(found->branch, std::move(work));
}

void call_for(cudaStream_t stream, std::function<void(cudaStream_t)> call) {
  {
    const Turn turn = take_turn();
    const CUstream_st* const found = streams().find(stream);
    if (!found) refuse("a call for a stream that is not there");
    if (found->capture) return found->capture->call(found->branch, std::move(call));
  }
  call(stream);
}

namespace {
thread_local std::shared_ptr<Capture> of_thread;
}

Capture* capture_of(cudaStream_t stream) {
  const CUstream_st* const found = streams().find(stream);
  return found ? found->capture.get() : nullptr;
}
Capture* capture_of_thread() { return of_thread.get(); }
void begin_capture(cudaStream_t stream) {
  of_thread = std::make_shared<Capture>(stream, std::this_thread::get_id());
  stream->capture = of_thread;
  stream->branch = 0;
}
std::shared_ptr<Program> end_capture(cudaStream_t stream) {
  const std::shared_ptr<Capture> capture = stream->capture;
  for (const cudaStream_t in_it : capture->streams()) in_it->capture = nullptr;
  of_thread = nullptr;
  return capture->end();
}
bool spoils_capture() {
  if (of_thread) of_thread->invalidate();
  return of_thread != nullptr;
}

}  // namespace lockstep::emulated_gpu

using namespace lockstep::emulated_gpu;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  if (faults().streams != cudaSuccess) return failed(faults().streams);
  if (flags != cudaStreamNonBlocking)
    return failed(cudaErrorNotSupported);  // those that wait for the null one
  *stream = streams().make();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Turn turn = take_turn();
  if (!stream || !known(stream)) return failed(cudaErrorInvalidResourceHandle);
  if (stream->capture) return failed(cudaErrorStreamCaptureUnsupported);
  streams().destroy(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  if (!known(stream)) return failed(cudaErrorInvalidResourceHandle);
  if (spoils_capture()) return failed(cudaErrorStreamCaptureUnsupported);
  finish(stream);
  return faults().broken == cudaSuccess ? cudaSuccess : failed(faults().broken);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  CUstream_st* const found = streams().find(stream);
  if (!found) return failed(cudaErrorInvalidResourceHandle);
  if (spoils_capture()) return failed(cudaErrorStreamCaptureUnsupported);
  if (found->waiting.empty()) return cudaSuccess;
  streams().go_on(*found, found->asked());
  return failed(cudaErrorNotReady);
}
/// Where the stream or the event is in one. A stream that waits for an event of a capture joins it.
static cudaError_t wait_in_capture(CUstream_st& stream, const CUevent_st& event) {
  if (!event.captured) {
    stream.capture->invalidate();
    return failed(cudaErrorStreamCaptureIsolation);
  }
  if (event.captured->over()) return failed(cudaErrorCapturedEvent);
  if (stream.capture && stream.capture != event.captured) return failed(cudaErrorStreamCaptureMerge);
  if (!stream.capture) {
    stream.capture = event.captured;
    stream.branch = stream.capture->join(&stream);
  }
  stream.capture->wait(stream.branch, event.mark);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  CUstream_st* const found = streams().find(stream);
  if (!found || !event) return failed(cudaErrorInvalidResourceHandle);
  if (event->captured || found->capture) return wait_in_capture(*found, *event);
  if (event->last && !event->last->done) streams().ask(*found, {.work = nullptr, .behind = event->last});
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st{.timed = (flags & cudaEventDisableTiming) == 0,
                          .sleeps = (flags & cudaEventBlockingSync) != 0,
                          .last = nullptr};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Turn turn = take_turn();
  if (!event) return failed(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  CUstream_st* const found = streams().find(stream);
  if (!found || !event || event->device != found->device) return failed(cudaErrorInvalidResourceHandle);
  event->captured = found->capture;
  if (found->capture) {
    event->mark = found->capture->mark(found->branch);
    return cudaSuccess;
  }
  const auto record = std::make_shared<Record>(Record{.stream = found, .place = found->asked() + 1});
  event->last = record;
  const auto note = [record] {
    record->done = true;
    record->when = std::chrono::steady_clock::now();
  };
  streams().ask(*found, {.work = note, .behind = nullptr});
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  if (flags == cudaEventRecordDefault) return cudaEventRecord(event, stream);
  if (flags != cudaEventRecordExternal || !capture_of(stream)) return failed(cudaErrorInvalidValue);
  if (event->device != device_of(stream)) return failed(cudaErrorInvalidResourceHandle);
  event->captured = nullptr;
  call_for(stream, [event](cudaStream_t at) { cudaEventRecord(event, at); });
  return cudaSuccess;
}
/// Whether nobody can look at it now.
static cudaError_t hidden(const CUevent_st& event) {
  if (event.captured) event.captured->invalidate();
  if (spoils_capture()) return failed(cudaErrorStreamCaptureUnsupported);
  return event.captured ? failed(cudaErrorCapturedEvent) : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  if (!event) return failed(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = hidden(*event); error != cudaSuccess) return error;
  if (!event->last || event->last->done) return cudaSuccess;
  if (!event->sleeps) ++counts().spinning_waits;
  streams().finish(*event->last);
  return faults().broken == cudaSuccess ? cudaSuccess : failed(faults().broken);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  if (!event) return failed(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = hidden(*event); error != cudaSuccess) return error;
  if (!event->last || event->last->done) return cudaSuccess;
  streams().go_on(*event->last->stream, event->last->place);
  return failed(cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  const Turn turn = take_turn();
  if (faults().broken != cudaSuccess) return failed(faults().broken);
  if (!start || !end || start->device != end->device || !start->timed || !end->timed || !start->last ||
      !end->last || start->captured || end->captured)
    return failed(cudaErrorInvalidResourceHandle);
  if (!start->last->done || !end->last->done) return failed(cudaErrorNotReady);
  *ms = std::chrono::duration<float, std::milli>(end->last->when - start->last->when).count();
  return cudaSuccess;
}

}  // extern "C"
