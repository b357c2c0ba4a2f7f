// The frame of a verb: its options, its help, its output. Each verb is a file of its name with a function of
// its name, and a line in app.cpp.
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

/// The program of a command line: lockstep, or one with models and tasks of its own.
struct Program {
  std::string name;
  const Registries& registries;
};

/// Runs a verb with the words after it, on every rank.
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
  po::options_description_easy_init add() { return shown_.add_options(); }
  /// Adds positional arguments, in order; `count` -1 takes the rest. Their value is a vector of strings.
  void positional(const char* name, int count = 1);

  /// True: continue with `values`. False: rank 0 printed the help that --help asks for. Throws UsageError on
  /// unknown options (with the nearest one) and bad values.
  bool parse(Session& session, const Arguments& arguments, po::variables_map& values);
  /// The same; this process prints help if `prints`.
  bool parse(bool prints, const Arguments& arguments, po::variables_map& values);
  /// "eval: a checkpoint is missing; see lockstep eval --help"
  UsageError error(std::string_view what) const;
  /// The single value of a positional argument; error(`missing`) if there is none.
  std::string required(const po::variables_map& values, const char* name, std::string_view missing) const;

 private:
  std::string help() const;

  std::string program_, usage_, text_;
  po::options_description shown_, all_;
  po::positional_options_description positional_;
};

/// Adds --device, of verbs that compute.
void add_device(OptionSet& options);

/// Adds --json and --html.
void add_output(OptionSet& options);

/// The text given for an option, if any.
std::optional<std::string> given(const po::variables_map& values, const char* name);

/// Runs `action` on rank 0; every rank throws its error. Collective.
void on_rank_0(const Session& session, const std::function<void()>& action);
/// Prints on standard output; DataError if that is full. (App reports this for short texts, at the end.)
void print(const std::string& text);
/// Prints the document; replaces bytes that are not UTF-8.
void print_json(const nlohmann::json& document);
/// Where a result goes: to standard output, as JSON with --json or else as text, and to the page of --html.
class ResultOutput {
 public:
  /// UsageError if the file of --html cannot be written, before the work. Collective.
  ResultOutput(const po::variables_map& values, const Session& session);

  /// Rank 0 prints the document, or calls print_text().
  void print(const nlohmann::json& document, const std::function<void()>& print_text) const;
  /// Writes the page of the document that `document` makes, with a footer, and prints its name. Only rank 0
  /// makes it. Nothing where no page is wanted. Collective.
  void write_page(const std::function<nlohmann::json()>& document) const;

 private:
  const Session& session_;
  std::string path_;
  bool json_;
};
/// Writes what was printed to the descriptor. DataError as for print().
void flush_output();

}  // namespace lockstep::cli
