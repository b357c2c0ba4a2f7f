#include "lockstep/train/metrics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/streams.h"
#include "base/text.h"
#include "lockstep/train/session.h"
#include "report/event_file.h"
#include "report/run_log.h"
#include "train/watch/processes.h"

namespace lockstep::train {
namespace {

/// Whether a resumed run keeps a line. Foreign lines are dropped.
bool is_kept(std::string_view line, const report::ResumePoint& point) {
  const std::optional<nlohmann::json> parsed = report::parse_metrics_line(line);
  return parsed &&
         point.keeps((*parsed)["step"].get<std::int64_t>(), parsed->contains(report::metric_of_evaluations));
}

/// The end of the last line to keep. Steps never decrease in a file, so this reads only its end.
std::uint64_t end_of_lines_up_to(const OpenFile& file, const report::ResumePoint& point) {
  constexpr std::uint64_t min_bytes = 1 << 16;
  for (std::uint64_t bytes = min_bytes;; bytes *= 4) {
    const EndOfFile end = lines_at_end(file, bytes);
    const auto lines = lines_of(end.text);
    const auto last_kept =
        std::find_if(lines.rbegin(), lines.rend(), [&](auto line) { return is_kept(line, point); });
    if (last_kept != lines.rend())
      return end.offset +
             static_cast<std::uint64_t>(last_kept->data() + last_kept->size() + 1 - end.text.data());
    if (bytes >= file.size()) return 0;
  }
}

constexpr double redraw_s = 0.2;  // on a terminal

/// Whether a line can be redrawn: on standard error, or on the terminal to which the launcher passes it on.
/// jobs/train-mpirun.sh, which reads mpirun's output, names the terminal.
bool redraws() {
  const char* const named = std::getenv("LOCKSTEP_TERMINAL");
  find_terminal_behind(named ? named : fmt::format("/proc/{}/fd/2", launcher_above(::getpid())));
  return standard_error_redraws();
}

/// The local time after this many seconds: "ends 14:32", "ends Thu 26 Nov 14:32".
std::string end_of(std::int64_t left_s) {
  constexpr std::int64_t max_s = 100LL * 365 * 24 * 3600;  // the estimate of a first step may be far off
  const std::time_t now = std::time(nullptr), end = now + std::min(left_s, max_s);
  std::tm today{}, day{};
  ::localtime_r(&now, &today);
  ::localtime_r(&end, &day);
  const bool same_day = today.tm_yday == day.tm_yday && today.tm_year == day.tm_year;
  char text[48];
  return {text, std::strftime(text, sizeof text, same_day ? "ends %H:%M" : "ends %a %d %b %H:%M", &day)};
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::int64_t resumed_step, bool evaluated, bool writes) {
  if (!writes) return;
  file_ = std::make_unique<OpenFile>(path, OpenFile::Mode::read_write_or_create);
  file_->truncate(end_of_lines_up_to(*file_, {.step = resumed_step, .evaluated = evaluated}));
  sync();
  sync_directory(directory_of(path));
}

MetricsFile::~MetricsFile() = default;

void MetricsFile::append(const nlohmann::json& line) {
  if (!file_) return;
  file_->append(json_text(line) + "\n");  // at the current end, as users may truncate the file
}

void MetricsFile::sync() {
  if (file_) file_->sync();
}

void Pace::at(std::int64_t steps_done, double seconds) {
  if (steps_done - newer_.step >= steps_) {
    older_ = newer_;
    newer_ = {steps_done, seconds};
  }
  if (steps_done > older_.step)
    step_s_ = (seconds - older_.seconds) / static_cast<double>(steps_done - older_.step);
}

Progress::Progress(Log log, bool shows, std::int64_t first_step, std::int64_t last_step,
                   std::int64_t log_every, double min_line_s)
    : log_(std::move(log)),
      shows_(shows),
      terminal_(shows && redraws()),
      last_step_(last_step),
      log_every_(log_every),
      min_line_s_(min_line_s),
      started_s_(monotonic_s()),
      pace_(first_step, log_every) {
  if (!shows_ || first_step < last_step_) return;
  const std::string beyond = first_step > last_step_ ? fmt::format(", train.steps = {}", last_step_) : "";
  log_.info("nothing to do: {} done already{}", pluralized(first_step, "step"), beyond);
}

Progress::Progress(const Session& session, std::int64_t first_step, std::int64_t last_step,
                   std::int64_t log_every)
    : Progress(session.log(), session.world().rank() == 0, first_step, last_step, log_every) {
  global_batch_ = session.run().global_batch;
}

Progress::~Progress() { finish(); }

void Progress::take_pace(std::int64_t steps_done) {
  pace_.at(steps_done, monotonic_s() - started_s_ - evaluations_s_);
}

/// Assumes the time of recent steps, and of the last evaluation.
std::int64_t Progress::seconds_left(std::int64_t steps_done, double evaluations_left) const {
  return static_cast<std::int64_t>(pace_.step_s() * static_cast<double>(last_step_ - steps_done) +
                                   last_evaluation_s_ * evaluations_left);
}

/// The parts and the remaining time; on a terminal also the time of the end and the last part, if they fit
/// into its width.
void Progress::draw(std::initializer_list<std::string> parts, std::int64_t left_s,
                    const std::string& last_part) {
  drawn_s_ = monotonic_s();
  const std::string left = duration_text(static_cast<double>(left_s)) + " left";
  if (!terminal_) {
    line_s_ = drawn_s_;
    return log_.info("{}  {}", fmt::join(parts, "  "), left);
  }
  std::vector<std::string> all(parts);
  all.push_back(left);
  all.push_back(end_of(left_s));
  if (!last_part.empty()) all.push_back(last_part);
  // A line as wide as the terminal would move the cursor to the next one.
  const auto columns = static_cast<std::size_t>(std::max(2, standard_error_columns())) - 1;
  std::string line = all.front();
  for (auto part = all.begin() + 1; part != all.end() && line.size() + 2 + part->size() <= columns; ++part)
    line += "  " + *part;
  draw_line(std::string_view(line).substr(0, columns));
}

bool Progress::due(std::int64_t steps_done) const {
  if (!shows_ || steps_done == last_step_) return shows_;
  if (terminal_) return monotonic_s() - drawn_s_ >= redraw_s;
  return steps_done % log_every_ == 0 && monotonic_s() - line_s_ >= min_line_s_;
}

void Progress::step(std::int64_t steps_done, double loss) {
  take_pace(steps_done);
  step(steps_done, loss, static_cast<double>(global_batch_) / pace_.step_s(), 0);
}

void Progress::step(std::int64_t steps_done, double loss, double samples_per_second,
                    std::int64_t evaluations_left, std::optional<double> data_wait_ms,
                    std::optional<double> tokens_per_second) {
  take_pace(steps_done);
  if (!due(steps_done)) return;
  std::string speed = fmt::format("{:.0f} samples/s", samples_per_second);
  if (tokens_per_second) speed += fmt::format("  {:.0f} tokens/s", *tokens_per_second);
  const std::string wait = data_wait_ms ? fmt::format("data wait {:.1f} ms", *data_wait_ms) : "";
  constexpr double notable = 0.01;  // of a step
  const bool is_slowed = data_wait_ms.value_or(0) > notable * 1e3 * pace_.step_s();
  draw({fmt::format("step {}/{}", steps_done, last_step_), "loss " + figure(loss),
        !terminal_ && is_slowed ? speed + "  " + wait : speed},
       seconds_left(steps_done, static_cast<double>(evaluations_left)), wait);
}

void Progress::evaluation(std::int64_t steps_done, double fraction, std::int64_t evaluations_left) {
  const double now_s = monotonic_s();
  if (evaluation_started_s_ == 0) evaluation_started_s_ = drawn_s_ = now_s;
  last_evaluation_s_ = fraction > 0 ? (now_s - evaluation_started_s_) / fraction : last_evaluation_s_;
  if (fraction >= 1) {
    evaluations_s_ += now_s - evaluation_started_s_;
    evaluation_started_s_ = 0;
    return;
  }
  constexpr double repeat_s = 30;
  if (!shows_ || now_s - drawn_s_ < (terminal_ ? redraw_s : repeat_s)) return;
  draw(
      {fmt::format("step {}/{}", steps_done, last_step_), fmt::format("evaluation {:.0f} %", 100 * fraction)},
      seconds_left(steps_done, static_cast<double>(evaluations_left) + 1 - fraction));
}

void Progress::note(const std::string& line) {
  if (shows_) log_.info("{}", line);
}

void Progress::note_evaluation(std::int64_t steps_done, const std::string& line) {
  const double now_s = monotonic_s();
  if (steps_done != last_step_ && now_s - evaluation_line_s_ < min_line_s_) return;
  evaluation_line_s_ = line_s_ = now_s;
  note(line);
}

void Progress::finish() {
  if (terminal_) keep_drawn_line();
}

}  // namespace lockstep::train
