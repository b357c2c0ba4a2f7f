// lockstep inspect: shows names, shapes, types, norms and provenance of a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/layout.h"
#include "cli/saved_model.h"
#include "cli/verb.h"
#include "lockstep/checkpoint/inspect.h"
#include "report/document.h"
#include "report/run_log.h"

namespace lockstep::cli {
namespace {

using nlohmann::json;
using report::Pairs;

/// The contents of --json as tables; if there are more than max_tensors tensors, the largest ones.
json document_of(const checkpoint::Inspection& inspection) {
  constexpr std::size_t max_tensors = 3'000;
  const checkpoint::FileIndex& index = inspection.index;
  const json values = to_json(inspection);
  std::vector<json> tensors = values["tensors"], groups = values["groups"];
  std::map<std::string, double> bytes;
  for (const checkpoint::TensorEntry& tensor : index.tensors)
    bytes["/" + tensor.group] += static_cast<double>(tensor.bytes);
  std::string damaged;
  for (json& tensor : tensors) {
    tensor.erase("digest");
    if (!tensor["digest_right"].get<bool>())
      damaged += (damaged.empty() ? "" : ", ") + tensor["name"].get<std::string>();
  }
  const bool truncated = tensors.size() > max_tensors;
  if (truncated) {
    std::ranges::stable_sort(tensors, std::greater(),
                             [](const json& one) { return one["bytes"].get<double>(); });
    tensors.resize(max_tensors);
  }
  double largest = 0, unit = 1 << 10;
  for (const auto& [path, size] : bytes) largest = std::max(largest, size);
  const char* unit_name = "KiB";
  for (const char* const larger : {"MiB", "GiB"})
    if (largest >= 1024 * unit) unit *= 1024, unit_name = larger;
  std::vector<report::Bar> bars;
  for (json& group : groups) {
    const std::string path = group["path"];
    group["bytes"] = bytes[path];
    const char* const kind = path == "/model" ? "" : path.starts_with("/ema/") ? "other" : "comm";
    if (bytes[path] > 0) bars.push_back({path, kind, bytes[path] / unit, report::bytes_text(bytes[path])});
  }
  Pairs facts{{"tensors", report::whole(std::ssize(index.tensors))},
              {"size of the file", report::bytes_text(static_cast<double>(index.file_bytes))},
              {"written by", pluralized(index.world_size, "rank")}};
  for (const char* const key : {"seed", "shards", "samples", "epoch", "step"})
    if (values[key].is_number()) facts.insert(facts.begin(), {key, values[key].dump()});
  if (!damaged.empty())
    damaged = report::cut("Values do not match their digest in the manifest: " + damaged, 2'000);
  const std::string cut_off =
      fmt::format("Showing the largest {} of {} tensors.", max_tensors, index.tensors.size());
  return {
      {"title", "Checkpoint of step " + report::whole(index.position.step)},
      {"lead", fmt::format("{} · written {}", index.path, index.created)},
      {"facts", facts},
      {"sections",
       {report::section("Damage", {report::note(damaged)}),
        report::section("Groups", {report::bars("Size of each group", unit_name, bars), {{"rows", groups}}}),
        report::section("Tensors", {{{"rows", tensors}}, report::note(truncated ? cut_off : "")}),
        report::section("Configuration", {report::configuration(report::keys_of_ini(index.config))}),
        report::section("Provenance",
                        {report::key_table({index.provenance.begin(), index.provenance.end()})})}}};
}

}  // namespace

ExitCode inspect(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "inspect FILE.h5 [--json] [--html FILE.html]",
                    "Shows the contents of a checkpoint: position in training, provenance, and name,\n"
                    "shape, type, norm, extremes and count of non-finite elements of each tensor.");
  add_output(options);
  options.positional("file");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const std::string file = options.required(values, "file", "the checkpoint file is missing");
  const ResultOutput output(values, session);
  std::optional<checkpoint::Inspection> inspection;
  on_rank_0(session, [&] {
    refuse_foreign(file);
    inspection = checkpoint::inspect(file);
    output.print(to_json(*inspection), [&] { print(to_text(*inspection)); });
  });
  output.write_page([&] { return document_of(*inspection); });
  return ExitCode::done;
}

}  // namespace lockstep::cli
