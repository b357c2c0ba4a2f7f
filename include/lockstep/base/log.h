// Log lines on standard error: plain text, ranks other than 0 put their rank in front.
#pragma once

#include <fmt/core.h>

#include <memory>
#include <string_view>
#include <utility>

namespace spdlog {
class logger;
}

namespace lockstep {

enum class LogLevel { info, warning, error };

/// A handle on where log lines go. Copies share the sink. Thread-safe.
/// Ranks other than 0 write warnings and errors only, so that a line appears once.
class Log {
 public:
  /// The log of rank 0.
  Log();
  explicit Log(int rank);  ///< of this rank

  /// A line on standard error, with the time.
  template <class... Args>
  void info(fmt::format_string<Args...> text, Args&&... args) const {
    write(LogLevel::info, fmt::format(text, std::forward<Args>(args)...));
  }
  /// The same, marked as a warning.
  template <class... Args>
  void warning(fmt::format_string<Args...> text, Args&&... args) const {
    write(LogLevel::warning, fmt::format(text, std::forward<Args>(args)...));
  }
  /// The same, marked as an error.
  template <class... Args>
  void error(fmt::format_string<Args...> text, Args&&... args) const {
    write(LogLevel::error, fmt::format(text, std::forward<Args>(args)...));
  }

  /// One line, whatever the text holds: what is not printable is escaped. Dropped where nobody reads it.
  void write(LogLevel level, std::string_view text) const;

 private:
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace lockstep
