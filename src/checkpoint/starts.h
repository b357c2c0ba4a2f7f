// Private to the room: how often a run was started from each of its checkpoints without getting any further.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace lockstep::checkpoint {

/// RUN/checkpoints/starts: a line "STEP STARTS" for each checkpoint that a start has been made from since,
/// and that no newer one has followed. A run that ends in order takes its own start off again: what is left
/// are those that were killed or failed. For one process.
class Starts {
 public:
  explicit Starts(std::string path) : path_(std::move(path)) {}

  using Counts = std::map<std::int64_t, int>;

  /// By step, so far.
  Counts read() const;
  void add(std::int64_t step);
  /// The last add() led to an end in order.
  void take_back(std::int64_t step);
  /// There is a newer checkpoint than those of up to this step.
  void forget_up_to(std::int64_t step);

 private:
  void write(const Counts& counts) const;
  std::string path_;
};

}  // namespace lockstep::checkpoint
