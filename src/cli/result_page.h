// --html of verbs that measure or look into something: the page that they write next to what they print.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/verb.h"
#include "report/document.h"

namespace lockstep::cli {

/// Adds --html.
void add_html(OptionSet& options);
/// Adds --with.
void add_with(OptionSet& options);

/// The page of --html, if it is asked for.
class ResultPage {
 public:
  /// UsageError if the file of --html cannot be written, before the work. `json`: standard output has a
  /// document. Collective.
  ResultPage(const po::variables_map& values, const Session& session, bool json);

  bool wanted() const { return !path_.empty(); }
  /// Writes the page that `page` makes, with a footer, and prints its name. Only rank 0 makes it. Nothing
  /// where no page is wanted. Collective.
  void write(const std::function<report::Page()>& page) const;

 private:
  const Session& session_;
  std::string path_;
  bool json_;
};

/// The results of --with, of the same verb with --json; `keys` are what each has. DataError that names the
/// file. Collective.
std::vector<nlohmann::json> results_of_others(const po::variables_map& values, const Session& session,
                                              const std::vector<std::string>& keys);

/// The section of a page that says on what it was measured.
std::string environment_section(const Session& session);

}  // namespace lockstep::cli
