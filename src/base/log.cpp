#include "lockstep/base/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <mutex>

#include "base/streams.h"
#include "base/text.h"

namespace lockstep {
namespace {

class StandardError final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    write_standard_error({line.data(), line.size()});
  }
  void flush_() override {}
};

}  // namespace

Log::Log() : Log(0) {}

Log::Log(int rank) {
  auto sink = std::make_shared<StandardError>();
  sink->set_pattern(rank > 0 ? fmt::format("[%H:%M:%S] [rank {}] %v", rank) : "[%H:%M:%S] %v");
  logger_ = std::make_shared<spdlog::logger>("lockstep", std::move(sink));
  logger_->set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
}

void Log::write(LogLevel level, std::string_view text) const {
  const std::string line = on_one_line(text);
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
