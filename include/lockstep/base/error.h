// Typed errors and the exit codes they end a program with.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace lockstep {

/// How a run ends. Job scripts decide on a requeue by these numbers; they never change.
enum class ExitCode : int {
  done = 0,
  usage = 2,          ///< usage, configuration or surroundings: never requeued
  data = 3,           ///< bad data or checkpoint, storage full or read-only: never requeued
  training = 4,       ///< the loss is not finite or the replicas differ: never requeued
  failure = 5,        ///< a rank failed, hung or lost its storage: requeued, bounded
  preempted = 75,     ///< stopped by preemption or the time limit, checkpoint written: requeued
  user_stopped = 76,  ///< stopped by the user, checkpoint written: never requeued
};

/// The base of every error that Lockstep throws. The text is one line: what was wrong, where (file, key,
/// tensor, rank), and what to do. Throw one of the derived kinds below.
class Error : public std::runtime_error {
 public:
  /// `code`: the exit code of a program that ends by this error.
  Error(ExitCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ExitCode code() const noexcept { return code_; }  ///< the exit code of a program that ends by it

 private:
  ExitCode code_;
};

/// One class per exit code, so that a caller can catch a kind. Arguments are those of fmt::format.
template <ExitCode Code>
class ErrorOf : public Error {
 public:
  /// The text is formatted as by fmt::format.
  template <class... Args>
  explicit ErrorOf(fmt::format_string<Args...> text, Args&&... args)
      : Error(Code, fmt::format(text, std::forward<Args>(args)...)) {}
};

using UsageError = ErrorOf<ExitCode::usage>;
using DataError = ErrorOf<ExitCode::data>;
using TrainingError = ErrorOf<ExitCode::training>;
using FailureError = ErrorOf<ExitCode::failure>;

}  // namespace lockstep
