#include "cli/verb.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/text.h"
#include "lockstep/comm/agreement.h"
#include "report/page.h"

namespace lockstep::cli {
namespace {

constexpr unsigned line_columns = 80;

/// "bench step" of "bench step [--workload NAME] ...", "train" of "train CONFIG ...".
std::string verb_of(const std::string& usage) {
  std::istringstream words(usage);
  std::string verb;
  for (std::string word; words >> word;) {
    if (!std::ranges::all_of(word, [](char letter) { return letter >= 'a' && letter <= 'z'; })) break;
    verb += (verb.empty() ? "" : " ") + word;
  }
  return verb;
}

}  // namespace

OptionSet::OptionSet(const Program& program, std::string usage, std::string text)
    : program_(program.name),
      usage_(std::move(usage)),
      text_(std::move(text)),
      options_("Options", line_columns) {
  add()("help,h", "print this help");
}

void OptionSet::positional(const char* name, int count) {
  positional_.add(name, count);
  arguments_.add_options()(name, po::value<std::vector<std::string>>());
}

std::string OptionSet::help() const {
  std::ostringstream options;
  options << options_;
  return fmt::format("Usage: {} {}\n\n{}\n\n{}", program_, usage_, text_, options.str());
}

bool OptionSet::parse(Session& session, const Arguments& arguments, po::variables_map& values) {
  return parse(session.world().rank() == 0, arguments, values);
}

bool OptionSet::parse(bool prints, const Arguments& arguments, po::variables_map& values) {
  po::options_description known;
  known.add(options_).add(arguments_);
  try {
    // Abbreviations are errors: job scripts read these options and know full names only.
    const int style = po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
    po::store(po::command_line_parser(arguments).options(known).positional(positional_).style(style).run(),
              values);
    po::notify(values);
  } catch (const po::unknown_option& unknown) {
    std::vector<std::string> names;
    for (const auto& option : options_.options()) names.push_back("--" + option->long_name());
    const std::string text = fmt::format("unknown option {}", unknown.get_option_name());
    const std::string nearest = nearest_name(unknown.get_option_name(), names);
    if (nearest.empty()) throw error(text);
    throw UsageError("{}: {}; did you mean {}?", verb_of(usage_), text, nearest);
  } catch (const po::too_many_positional_options_error&) {
    throw error(
        fmt::format("too many arguments{}; quote texts that contain blanks",
                    options_.find_nothrow("set", false) ? "; each --set takes one SECTION.KEY=VALUE" : ""));
  } catch (const po::invalid_option_value& invalid) {
    // Not what(): it replaces %value% until none is left, and never ends if the value contains %value%.
    throw error(fmt::format("invalid value of option '{}'", invalid.get_option_name()));
  } catch (const po::error& invalid) {
    throw error(invalid.what());
  }
  if (values.count("help") == 0) return true;
  if (prints) fmt::print("{}", help());
  return false;
}

UsageError OptionSet::error(std::string_view what) const {
  return UsageError("{0}: {1}; see {2} {0} --help", verb_of(usage_), what, program_);
}

std::string OptionSet::required(const po::variables_map& values, const char* name,
                                std::string_view missing) const {
  if (values.count(name) == 0) throw error(missing);
  return values[name].as<std::vector<std::string>>().front();
}

void add_device(OptionSet& options) {
  options.add()("device", po::value<std::string>(), "auto (a GPU if the node has one), cpu or cuda");
}

bool unknown_as_missing(const po::variables_map& values) {
  const std::optional<std::string> text = option_text(values, "unknown");
  if (text && *text != "as-missing") throw UsageError("--unknown {}: must be as-missing", *text);
  return text.has_value();
}

void add_output(OptionSet& options) {
  options.add()("json", "print one JSON document");
  options.add()("html", po::value<std::string>(), "also write an HTML page to this file");
}

std::optional<std::string> option_text(const po::variables_map& values, const char* name) {
  if (values.count(name) == 0) return std::nullopt;
  return values[name].as<std::string>();
}

void on_rank_0(const Session& session, const std::function<void()>& action) {
  // Rank 0 may take hours. The others report the last phase, so that no watchdog counts it as a hang.
  using progress::Phase;
  const progress::During during(session.world().rank() == 0 ? progress::status().current_phase()
                                                            : Phase::teardown);
  comm::run_on_all(session.world(), [&] {
    if (session.world().rank() == 0) action();
  });
}

void print(const std::string& text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size()) return;
  if (errno == EPIPE) return std::clearerr(stdout);  // as in flush_output()
  flush_output();
}

void print_line(const std::string& text) { print(on_one_line(text) + "\n"); }

void print_json(const nlohmann::json& document) { print(json_text(document, 2) + "\n"); }

ResultOutput::ResultOutput(const po::variables_map& values, const Session& session)
    : session_(session), path_(option_text(values, "html").value_or("")), json_(values.count("json") > 0) {
  if (values.count("html") == 0) return;
  if (path_.empty()) throw UsageError("--html: the file name is missing");
  on_rank_0(session, [this] { report::check_page(path_); });
}

void ResultOutput::print(const nlohmann::json& document, const std::function<void()>& print_text) const {
  if (session_.world().rank() == 0) json_ ? print_json(document) : print_text();
}

void ResultOutput::write_page(const std::function<nlohmann::json()>& document) const {
  if (path_.empty()) return;
  on_rank_0(session_, [&] {
    nlohmann::json contents = document();
    contents["footer"] = fmt::format("Written by lockstep {} at {}.", LOCKSTEP_VERSION, utc_now());
    report::write_page(path_, contents);
    if (!json_) print_line(path_);
  });
}

void flush_output() {
  errno = 0;
  const bool failed = std::fflush(stdout) != 0;
  if (errno == EPIPE) return std::clearerr(stdout);  // the reader closed the pipe
  if (failed || std::ferror(stdout) != 0)
    throw_system_error(errno != 0 ? errno : ENOSPC, "standard output", "write");
}

}  // namespace lockstep::cli
