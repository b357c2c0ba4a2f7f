// Timeline: the spans of all ranks as one Chrome trace (chrome://tracing, Perfetto).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::ddp {

/// Spans of time of this rank, kept in memory of a fixed size until write(). Recording allocates nothing.
class Timeline {
 public:
  /// Space for this many spans a rank; later ones are dropped and counted.
  static constexpr std::size_t max_spans = 200'000;

  /// The rows of a rank in the trace. Buckets have a row each, from `buckets` on.
  enum Row : int { steps, compute, buckets };

  /// Collective: the moment that is zero on every rank. Clocks of different nodes are aligned by a barrier,
  /// so they agree to its duration; the ranks of one node read one clock. Throws on all ranks if `path`
  /// cannot be written, or names a file that is not a trace (UsageError).
  Timeline(std::string path, comm::HostGroup& group);

  /// A span from start_s to end_s on the clock of monotonic_s(). `name` must live as long as this object.
  void add(const char* name, int row, std::int64_t step, double start_s, double end_s);

  /// Collective: rank 0 writes the spans of all ranks to the path, replacing an existing trace; nothing if
  /// rank 0 has no spans. Returns the number of dropped spans of all ranks. Throws on all ranks if the file
  /// cannot be written.
  std::int64_t write() const;

 private:
  struct Span {
    const char* name;
    int row;
    std::int64_t step;
    double start_s, end_s;
  };
  std::string as_json() const;

  void check_writable() const;

  std::string path_;
  comm::HostGroup& group_;
  double zero_s_ = 0;
  std::vector<Span> spans_;
  std::int64_t dropped_ = 0;
};

}  // namespace lockstep::ddp
