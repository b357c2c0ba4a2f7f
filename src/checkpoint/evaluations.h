// Private to the module: what evaluations found about the checkpoints of a run, in a record beside them. A
// checkpoint is saved before it is evaluated, so the file itself cannot say.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "lockstep/base/log.h"

namespace lockstep::checkpoint {

/// RUN/checkpoints/evaluations.json: {"500": {"eval_loss": 0.31, ...}, ...}; null is a number that is not
/// finite. Of one process. Reading a record that is none gives an empty one, with a warning: it can be made
/// again.
class Evaluations {
 public:
  using Metrics = std::map<std::string, double>;

  Evaluations(std::string path, const Log& log);

  /// Null if it is not known.
  const double* find(std::int64_t step, const std::string& metric) const;
  void set(std::int64_t step, const Metrics& metrics);
  /// The files of these steps are written anew, or gone.
  void forget(std::span<const std::int64_t> steps);
  /// Those of later steps are of a course that the run has left.
  void forget_after(std::int64_t step);

 private:
  void write() const;

  std::string path_;
  std::map<std::int64_t, Metrics> of_step_;
};

}  // namespace lockstep::checkpoint
