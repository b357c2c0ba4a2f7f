#include "cli/result_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/files.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::cli {

void add_html(OptionSet& options) {
  options.add()("html", po::value<std::string>(), "also write a page of this name");
}

void add_with(OptionSet& options) {
  options.add()("with", po::value<Arguments>()->multitoken(), "of --html: --json of other numbers of ranks");
}

ResultPage::ResultPage(const po::variables_map& values, const Session& session, bool json)
    : session_(session), path_(given(values, "html").value_or("")), json_(json) {
  if (values.count("html") > 0 && path_.empty()) throw UsageError("--html: a file name is missing");
  if (wanted()) on_rank_0(session, [this] { report::check_page(path_); });
}

void ResultPage::write(const std::function<report::Page()>& page) const {
  if (!wanted()) return;
  on_rank_0(session_, [&] {
    report::Page written = page();
    written.footer = fmt::format("Written by lockstep {} at {}.", LOCKSTEP_VERSION, utc_now());
    report::write_page(path_, to_html(written));
    if (!json_) print(path_ + "\n");
  });
}

std::vector<nlohmann::json> results_of_others(const po::variables_map& values, const Session& session,
                                              const std::vector<std::string>& keys) {
  std::vector<nlohmann::json> results;
  if (values.count("with") == 0) return results;
  if (values.count("html") == 0) throw UsageError("--with: only the page of --html shows other results");
  comm::run_on_all(session.world(), [&] {
    for (const std::string& path : values["with"].as<Arguments>()) {
      nlohmann::json result = nlohmann::json::parse(read_text(path), nullptr, false);
      const bool has_all = result.is_object() && std::ranges::all_of(keys, [&](const std::string& key) {
                             return result.contains(key);
                           });
      const auto in_range = [&](const char* key, double most) {
        const auto found = result.find(key);
        return found == result.end() || (found->is_number() && *found > 0 && *found < most);
      };
      if (!has_all || !in_range("ranks", 1e6) || !in_range("samples_per_second", 1e15))
        throw DataError("--with: {}: is not what this verb prints with --json", path);
      results.push_back(std::move(result));
    }
  });
  return results;
}

std::string environment_section(const Session& session) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& [name, value] : checkpoint::provenance_of(session.world()))
    pairs.emplace_back(name, value);
  return report::section("Environment", report::key_table(pairs));
}

}  // namespace lockstep::cli
