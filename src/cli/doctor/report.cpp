// Findings of all ranks as one list, as lines or as JSON.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/doctor/finding.h"
#include "cli/verb.h"

namespace lockstep::cli::checkup {
namespace {

/// A finding and who has it, or one like it: same subject, verdict and remedy. The text is the first's.
struct Shared {
  Finding finding;
  std::vector<int> ranks;  ///< empty: of the run as a whole
};

nlohmann::json to_json(const Finding& finding) {
  return {{"subject", finding.subject},
          {"verdict", word(finding.verdict)},
          {"text", finding.text},
          {"remedy", finding.remedy}};
}

Finding from_json(const nlohmann::json& value) {
  return {value.at("subject").get<std::string>(), verdict_of(value.at("verdict").get<std::string>()),
          value.at("text").get<std::string>(), value.at("remedy").get<std::string>()};
}

/// Any bytes: what is no UTF-8 (names of files) is replaced.
std::string dump(const nlohmann::json& value, int indent = -1) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

void add(std::vector<Shared>& all, const Finding& finding, int rank) {
  const auto subject = [&](const Shared& shared) { return shared.finding.subject == finding.subject; };
  const auto alike = [&](const Shared& shared) {
    return subject(shared) && shared.finding.verdict == finding.verdict &&
           shared.finding.remedy == finding.remedy;
  };
  if (const auto place = std::ranges::find_if(all, alike); place != all.end()) {
    place->ranks.push_back(rank);
    return;
  }
  // Beside the others of its subject.
  const auto last = std::find_if(all.rbegin(), all.rend(), subject);
  all.insert(last == all.rend() ? all.end() : last.base(), {finding, {rank}});
}

/// "on h1, h2: ", or nothing for what is so everywhere or on the first machine alone, as expected.
std::string where(const Shared& shared, const comm::Topology& topology) {
  if (shared.ranks.empty() || topology.nodes() == 1) return "";
  std::vector<std::string> hosts;
  for (const int rank : shared.ranks) {
    const std::string& host =
        topology.host_names[static_cast<std::size_t>(topology.node_of_rank[static_cast<std::size_t>(rank)])];
    if (std::ranges::find(hosts, host) == hosts.end()) hosts.push_back(host);
  }
  if (static_cast<int>(hosts.size()) == topology.nodes()) return "";
  constexpr std::size_t most_named = 4;
  const std::size_t more = hosts.size() > most_named ? hosts.size() - most_named : 0;
  hosts.resize(hosts.size() - more);
  return fmt::format("on {}{}: ", fmt::join(hosts, ", "), more ? fmt::format(" and {} more", more) : "");
}

std::string as_lines(const std::vector<Shared>& all, const comm::Topology& topology) {
  std::string text;
  for (const Shared& shared : all) {
    const Finding& finding = shared.finding;
    const bool everywhere = shared.ranks.empty() || shared.ranks.front() == 0;
    if (finding.verdict == Verdict::ok && !everywhere) continue;  // the others' is told
    text += fmt::format("{:<8} {:<17} {}{}{}{}\n", word(finding.verdict), finding.subject,
                        where(shared, topology), finding.text, finding.remedy.empty() ? "" : "; ",
                        finding.remedy);
  }
  return text;
}

}  // namespace

bool report(comm::HostGroup& world, const Findings& mine, const Findings& common, bool json) {
  nlohmann::json own = nlohmann::json::array();
  for (const Finding& finding : mine) own.push_back(to_json(finding));
  std::vector<Shared> all;
  const std::vector<std::string> texts = world.all_gather_texts(dump(own));
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    for (const nlohmann::json& value : nlohmann::json::parse(texts[rank]))
      add(all, from_json(value), static_cast<int>(rank));
  }
  for (const Finding& finding : common) all.push_back({finding, {}});
  const bool problem = std::ranges::any_of(
      all, [](const Shared& shared) { return shared.finding.verdict == Verdict::problem; });
  if (world.rank() != 0) return problem;
  const comm::Topology& topology = world.topology();
  if (!json) {
    print(as_lines(all, topology));
    return problem;
  }
  nlohmann::json document = {{"ok", !problem},
                             {"ranks", world.size()},
                             {"hosts", topology.host_names},
                             {"findings", nlohmann::json::array()}};
  for (const Shared& shared : all) {
    nlohmann::json value = to_json(shared.finding);
    value["ranks"] = shared.ranks;
    document["findings"].push_back(std::move(value));
  }
  print(dump(document, 2) + "\n");
  return problem;
}

}  // namespace lockstep::cli::checkup
