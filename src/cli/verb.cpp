#include "cli/verb.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/files.h"
#include "base/text.h"
#include "lockstep/comm/agreement.h"

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

OptionSet::OptionSet(std::string usage, std::string text)
    : usage_(std::move(usage)), text_(std::move(text)), shown_("Options", line_columns) {
  add()("help,h", "show this text");
}

void OptionSet::positional(const char* name, int count) {
  positional_.add(name, count);
  all_.add_options()(name, po::value<std::vector<std::string>>());
}

std::string OptionSet::help() const {
  std::ostringstream options;
  options << shown_;
  return fmt::format("Usage: lockstep {}\n\n{}\n\n{}", usage_, text_, options.str());
}

bool OptionSet::parse(Session& session, const Arguments& arguments, po::variables_map& values) {
  return parse(session.world().rank() == 0, arguments, values);
}

bool OptionSet::parse(bool prints, const Arguments& arguments, po::variables_map& values) {
  const std::string verb = verb_of(usage_);
  po::options_description known;
  known.add(shown_).add(all_);
  try {
    // Abbreviated options are errors: the job scripts read these options, too.
    const int style = po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
    po::store(po::command_line_parser(arguments).options(known).positional(positional_).style(style).run(),
              values);
    po::notify(values);
  } catch (const po::unknown_option& error) {
    std::vector<std::string> names;
    for (const auto& option : shown_.options()) names.push_back("--" + option->long_name());
    const std::string nearest = nearest_name(error.get_option_name(), names);
    throw UsageError(
        "{}: unknown option {}; {}", verb, error.get_option_name(),
        nearest.empty() ? fmt::format("see lockstep {} --help", verb) : "did you mean " + nearest + "?");
  } catch (const po::too_many_positional_options_error&) {
    throw UsageError(
        "{0}: one word too many{1}; put quotes around texts with blanks; see lockstep {0} --help", verb,
        shown_.find_nothrow("set", false) ? "; every --set takes one SECTION.KEY=VALUE" : "");
  } catch (const po::invalid_option_value& error) {
    // Not its what(), which replaces %value% by the value until no %value% is left: for ever, if it has one.
    throw UsageError("{0}: the argument for option '{1}' is invalid; see lockstep {0} --help", verb,
                     error.get_option_name());
  } catch (const po::error& error) {
    throw UsageError("{}: {}; see lockstep {} --help", verb, error.what(), verb);
  }
  if (values.count("help") == 0) return true;
  if (prints) fmt::print("{}", help());
  return false;
}

void add_device(OptionSet& options) {
  options.add()("device", po::value<std::string>(), "auto (a GPU if there is one), cpu or cuda");
}

std::optional<std::string> given(const po::variables_map& values, const char* name) {
  if (values.count(name) == 0) return std::nullopt;
  return values[name].as<std::string>();
}

std::string required(const po::variables_map& values, const char* name, std::string_view missing) {
  if (values.count(name) == 0) throw UsageError("{}", missing);
  return values[name].as<std::vector<std::string>>().front();
}

void on_rank_0(const Session& session, const std::function<void()>& action) {
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

void print_json(const nlohmann::json& document) {
  print(document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void flush_output() {
  errno = 0;
  const bool failed = std::fflush(stdout) != 0;
  if (errno == EPIPE) return std::clearerr(stdout);  // the reader has seen enough
  if (failed || std::ferror(stdout) != 0)
    throw_system_error(errno != 0 ? errno : ENOSPC, "standard output", "write");
}

}  // namespace lockstep::cli
