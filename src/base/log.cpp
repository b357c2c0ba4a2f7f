#include "lockstep/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace lockstep {

Log::Log() : Log(0) {}

Log::Log(int rank) {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  sink->set_pattern(rank > 0 ? fmt::format("[%H:%M:%S] [rank {}] %v", rank) : "[%H:%M:%S] %v");
  logger_ = std::make_shared<spdlog::logger>("lockstep", std::move(sink));
  logger_->set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
  logger_->flush_on(spdlog::level::info);
}

void Log::write(LogLevel level, std::string_view line) const {
  switch (level) {
    case LogLevel::info:
      logger_->info(line);
      break;
    case LogLevel::warning:
      logger_->warn("warning: {}", line);
      break;
    case LogLevel::error:
      logger_->error("error: {}", line);
      break;
  }
}

}  // namespace lockstep
