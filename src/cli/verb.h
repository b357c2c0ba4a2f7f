// What every verb of the command line is made of.
#pragma once

#include <boost/program_options.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/train/session.h"

namespace lockstep::cli {

namespace po = boost::program_options;

using Arguments = std::vector<std::string>;

/// One verb: `run` gets the words after it, on every rank.
struct Verb {
  std::string_view name;
  std::string_view summary;  ///< a few words for `lockstep --help`
  ExitCode (*run)(Session& session, const Arguments& arguments);
};

/// The option set of a verb.
class OptionSet {
 public:
  /// `usage`: the line after "lockstep "; `text`: what the verb does, a few lines.
  OptionSet(std::string usage, std::string text);

  /// Options to be shown; add with add()("name", po::value<...>(), "meaning").
  po::options_description_easy_init add() { return shown_.add_options(); }
  /// Positional arguments in order; `count` -1 takes the rest. They are read as vectors of strings.
  void positional(const char* name, int count = 1);

  /// True: continue with `values`. False: --help was asked for and printed by rank 0. Throws UsageError on
  /// unknown options (with the nearest one) and bad values.
  bool parse(Session& session, const Arguments& arguments, po::variables_map& values);
  /// As above, for a program without ranks; or with, where `speaks` is rank 0.
  bool parse(bool speaks, const Arguments& arguments, po::variables_map& values);

 private:
  std::string help() const;

  std::string usage_, text_;
  po::options_description shown_, all_;
  po::positional_options_description positional_;
};

/// --device, of verbs that compute.
void add_device(OptionSet& options);
/// --precision, for SavedModel.
void add_precision(OptionSet& options);

/// The text given for an option, if any.
std::optional<std::string> given(const po::variables_map& values, const char* name);

/// The single value of a positional argument; UsageError(`missing`) if there is none.
std::string required(const po::variables_map& values, const char* name, std::string_view missing);

/// A document for people and programs; bytes that are no UTF-8 are replaced.
std::string json_text(const nlohmann::json& document);
/// Prints on standard output; DataError if that is full. For long texts: of short ones, `main` finds out at
/// the end.
void print(const std::string& text);
/// What was printed has left this process when it returns. DataError as above.
void flush_output();

/// How long MPI may take to start: fault.hang_timeout_s of the configuration that `words` name, if they do.
double start_timeout_s(const Arguments& words);

ExitCode train(Session& session, const Arguments& arguments);
ExitCode eval(Session& session, const Arguments& arguments);
ExitCode generate(Session& session, const Arguments& arguments);
ExitCode prepare(Session& session, const Arguments& arguments);
ExitCode inspect(Session& session, const Arguments& arguments);
ExitCode diff(Session& session, const Arguments& arguments);
ExitCode verify(Session& session, const Arguments& arguments);
ExitCode convert(Session& session, const Arguments& arguments);
ExitCode ema(Session& session, const Arguments& arguments);
ExitCode bench(Session& session, const Arguments& arguments);
ExitCode doctor(Session& session, const Arguments& arguments);

}  // namespace lockstep::cli
