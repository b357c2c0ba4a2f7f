// What verbs share: options, help and output. A verb NAME is a function NAME in NAME.cpp and a line in
// app.cpp.
#pragma once

#include <boost/program_options.hpp>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tasks/registry.h"
#include "lockstep/train/session.h"

namespace lockstep::cli {

namespace po = boost::program_options;

using Arguments = std::vector<std::string>;

/// The program that runs: lockstep, or one with its own models and tasks.
struct Program {
  std::string name;
  const Registries& registries;
};

/// Runs a verb on every rank. `arguments`: the words after the verb.
using VerbFunction = ExitCode(const Program& program, Session& session, const Arguments& arguments);

struct Verb {
  std::string_view name;
  std::string_view summary;  ///< a few words for `lockstep --help`
  VerbFunction* run;
};

/// The option set of a verb.
class OptionSet {
 public:
  /// `usage`: the line after the program's name; `text`: what the verb does, a few lines.
  OptionSet(const Program& program, std::string usage, std::string text);

  /// Adds options: add()("name", po::value<...>(), "meaning").
  po::options_description_easy_init add() { return options_.add_options(); }
  /// Adds positional arguments, in order; `count` -1 takes the rest. Their value is a vector of strings.
  void positional(const char* name, int count = 1);

  /// True: continue with `values`. False: rank 0 printed the help, for --help. UsageError for an unknown
  /// option (with the nearest known one) or an invalid value.
  bool parse(Session& session, const Arguments& arguments, po::variables_map& values);
  /// The same without a session; for --help, this process prints the help if `prints`.
  bool parse(bool prints, const Arguments& arguments, po::variables_map& values);
  /// "eval: a checkpoint is missing; see lockstep eval --help"
  UsageError error(std::string_view what) const;
  /// The only value of a positional argument; throws error(missing) without it.
  std::string required(const po::variables_map& values, const char* name, std::string_view missing) const;

 private:
  std::string help() const;

  std::string program_, usage_, text_;
  po::options_description options_, arguments_;
  po::positional_options_description positional_;
};

/// Adds --device, for verbs that compute.
void add_device(OptionSet& options);

/// Whether --unknown, the option of tables, is as-missing. UsageError for another text.
bool unknown_as_missing(const po::variables_map& values);

/// Adds --json and --html.
void add_output(OptionSet& options);

/// The text of an option; none if the command line lacks it.
std::optional<std::string> option_text(const po::variables_map& values, const char* name);

/// Runs `action` on rank 0; every rank throws its error. Collective.
void on_rank_0(const Session& session, const std::function<void()>& action);
/// Prints to standard output. DataError if it is full; for short texts App reports this at the end.
void print(const std::string& text);
/// Prints a line, with what is not printable in names as errors have it.
void print_line(const std::string& text);
/// Prints the document; replaces bytes that are not UTF-8.
void print_json(const nlohmann::json& document);
/// Writes a result to standard output, as text or with --json as JSON, and to the page of --html.
class ResultOutput {
 public:
  /// UsageError if the file of --html cannot be written; construct it before the work. Collective.
  ResultOutput(const po::variables_map& values, const Session& session);

  /// Rank 0 prints the document, or calls print_text().
  void print(const nlohmann::json& document, const std::function<void()>& print_text) const;
  /// With --html, rank 0 calls document(), writes it as a page with a footer, and prints the page's path.
  /// Collective.
  void write_page(const std::function<nlohmann::json()>& document) const;

 private:
  const Session& session_;
  std::string path_;
  bool json_;
};
/// Flushes standard output. DataError as for print().
void flush_output();

}  // namespace lockstep::cli
