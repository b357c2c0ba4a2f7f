#include "lockstep/train/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/base/clock.h"
#include "lockstep/base/counted.h"
#include "lockstep/base/system_error.h"

namespace lockstep::train {
namespace {

/// Lines of steps up to `last_step`; a torn last line, or anything else that is no line of ours, goes, too.
std::string lines_up_to(const std::string& path, std::int64_t last_step) {
  std::ifstream file(path);
  std::string kept;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json parsed = nlohmann::json::parse(line, nullptr, false);
    if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number_integer()) continue;
    if (parsed["step"].get<std::int64_t>() <= last_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::int64_t resumed_step, bool writes) : path_(path) {
  if (!writes) return;
  const std::string kept = lines_up_to(path, resumed_step), temporary = path + ".tmp";
  {
    std::ofstream file(temporary, std::ios::trunc);
    if (!(file << kept << std::flush)) throw_system_error(errno, temporary, "write");
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    throw_system_error(errno, path, "replace");
  }
  descriptor_ = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (descriptor_ < 0) throw_system_error(errno, path, "open");
}

MetricsFile::~MetricsFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void MetricsFile::append(const nlohmann::json& line) {
  if (descriptor_ < 0) return;
  const std::string text = line.dump() + "\n";
  const ssize_t written = write(descriptor_, text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size()))
    throw_system_error(written < 0 ? errno : ENOSPC, path_, "write");
}

Progress::Progress(Log log, bool shows, std::int64_t first_step, std::int64_t last_step,
                   std::int64_t log_every)
    : log_(std::move(log)),
      shows_(shows),
      terminal_(isatty(STDERR_FILENO) != 0),
      first_step_(first_step),
      last_step_(last_step),
      log_every_(log_every),
      started_s_(monotonic_s()) {
  if (!shows_ || first_step_ < last_step_) return;
  const std::string beyond = first_step_ > last_step_ ? fmt::format(", train.steps = {}", last_step_) : "";
  log_.info("nothing to do: {} done already{}", counted(first_step_, "step"), beyond);
}

void Progress::step(std::int64_t steps_done, double loss, double samples_per_second) {
  constexpr double redraw_s = 0.2;
  if (!shows_) return;
  const double now_s = monotonic_s();
  const bool last = steps_done == last_step_;
  if (terminal_ ? (now_s - drawn_s_ < redraw_s && !last) : (steps_done % log_every_ != 0 && !last)) return;
  drawn_s_ = now_s;
  const double per_step_s = (now_s - started_s_) / static_cast<double>(steps_done - first_step_);
  const auto left_s = static_cast<std::int64_t>(per_step_s * static_cast<double>(last_step_ - steps_done));
  const std::string line =
      fmt::format("step {}/{}  loss {:.4f}  {:.0f} samples/s  {}:{:02d}:{:02d} left", steps_done, last_step_,
                  loss, samples_per_second, left_s / 3600, left_s / 60 % 60, left_s % 60);
  if (terminal_) {
    fmt::print(stderr, "\r\x1b[K{}", line);
    std::fflush(stderr);
    line_open_ = true;
  } else {
    log_.info("{}", line);
  }
}

void Progress::note(const std::string& line) {
  finish();
  if (shows_) log_.info("{}", line);
}

void Progress::finish() {
  if (line_open_) fmt::print(stderr, "\n");
  line_open_ = false;
}

}  // namespace lockstep::train
