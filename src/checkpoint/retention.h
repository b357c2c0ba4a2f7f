// Private to the room: which checkpoints of a run stay.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

/// The newest `keep`, and the best one by a metric. Metrics whose names end in "accuracy" are better when
/// they are greater, others when they are less. Of equals the earlier is the best.
class Retention {
 public:
  /// keep: 0 keeps all. metric: empty for none.
  Retention(int keep, std::string metric);

  const std::string& metric() const { return metric_; }
  /// The metric of the checkpoint of this step; none if it was not evaluated.
  void note(std::int64_t step, std::optional<double> metric);
  /// Of those that exist; none if none of them was evaluated.
  std::optional<std::int64_t> best(std::span<const std::int64_t> steps) const;

  /// Those of `steps` (newest first) that go now that `newest` has been written. Later steps are of a course
  /// that the run has left; they are no reason to drop what it has just written.
  std::vector<std::int64_t> to_remove(std::span<const std::int64_t> steps, std::int64_t newest) const;

 private:
  int keep_;
  std::string metric_;
  bool more_is_better_;
  std::map<std::int64_t, double> scores_;
};

}  // namespace lockstep::checkpoint
