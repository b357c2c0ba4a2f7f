// lockstep inspect: shows names, shapes, dtypes, norms and provenance of a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/text.h"
#include "checkpoint/layout.h"
#include "cli/result_page.h"
#include "cli/saved_model.h"
#include "cli/verb.h"
#include "lockstep/checkpoint/inspect.h"
#include "report/chart.h"
#include "report/run_log.h"

namespace lockstep::cli {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

constexpr std::size_t most_tensors = 3'000;  // on a page

std::string facts_of(const checkpoint::FileIndex& index) {
  const checkpoint::Position& position = index.position;
  Pairs facts{{"step", report::whole(position.step)}};
  if (position.knows_samples()) {
    facts.emplace_back("epoch", report::whole(position.epoch));
    facts.emplace_back("samples", report::whole(position.samples));
  }
  if (position.knows_shards()) {
    facts.emplace_back("shards", report::whole(position.shards));
    facts.emplace_back("seed", std::to_string(position.seed));
  }
  facts.emplace_back("tensors", report::whole(std::ssize(index.tensors)));
  facts.emplace_back("size of the file", report::bytes_text(static_cast<double>(index.file_bytes)));
  facts.emplace_back("written by", pluralized(index.world_size, "rank"));
  return report::facts(facts);
}

/// Bytes and attributes of each group.
std::string groups_of(const checkpoint::Inspection& inspection) {
  struct Size {
    std::size_t tensors = 0;
    double elements = 0, bytes = 0;
  };
  std::map<std::string, Size> sizes;
  for (const checkpoint::TensorEntry& tensor : inspection.index.tensors) {
    Size& size = sizes[tensor.group];
    ++size.tensors;
    size.elements += static_cast<double>(tensor.shape.numel());
    size.bytes += static_cast<double>(tensor.bytes);
  }
  double largest = 0;
  for (const auto& [path, size] : sizes) largest = std::max(largest, size.bytes);
  constexpr double kib = 1 << 10, mib = 1 << 20, gib = 1 << 30;
  const auto [unit, unit_bytes] = largest >= gib   ? std::pair{"GiB", gib}
                                  : largest >= mib ? std::pair{"MiB", mib}
                                                   : std::pair{"KiB", kib};
  report::Timeline bars{.title = "Size of each group", .unit = unit, .axis = unit, .rows = {}, .spans = {}};
  report::Table table({"group", "tensors", "elements", "size", "attributes"});
  for (const checkpoint::GroupEntry& group : inspection.index.groups) {
    const Size& size = sizes[group.path];
    std::string attributes;
    for (const auto& [name, value] : group.attributes)
      attributes +=
          fmt::format("{}{} = {}", attributes.empty() ? "" : ", ", name, checkpoint::to_text(value));
    table.add({{"/" + group.path},
               report::cell(static_cast<double>(size.tensors)),
               report::cell(size.elements),
               report::cell(size.bytes, report::bytes_text(size.bytes)),
               {report::cut(attributes, 300)}});
    if (size.bytes <= 0) continue;
    const bool is_ema = group.path.starts_with("ema/"), is_model = group.path == "model";
    bars.spans.push_back({.row = bars.rows.size(),
                          .kind = is_model ? ""
                                  : is_ema ? "other"
                                           : "comm",
                          .name = is_model ? "model"
                                  : is_ema ? "EMA weights"
                                           : "optimizer and others",
                          .start = 0,
                          .length = size.bytes / unit_bytes,
                          .text = report::bytes_text(size.bytes)});
    bars.rows.push_back("/" + group.path);
  }
  bars.key = true;
  return to_html(bars) + table.to_html();
}

/// The largest first.
std::string tensors_of(const checkpoint::Inspection& inspection) {
  std::vector<const checkpoint::TensorSummary*> order;
  for (const checkpoint::TensorSummary& tensor : inspection.tensors) order.push_back(&tensor);
  const bool some = order.size() > most_tensors;
  if (some) {
    std::ranges::stable_sort(order, std::greater(), [](const auto* tensor) { return tensor->entry.bytes; });
    order.resize(most_tensors);
  }
  report::Table table(
      {"tensor", "shape", "type", "size", "norm", "least", "greatest", "not finite", "digest"});
  for (const checkpoint::TensorSummary* const tensor : order) {
    const auto bytes = static_cast<double>(tensor->entry.bytes);
    const auto short_number = [](double value) { return report::cell(value, fmt::format("{:.4g}", value)); };
    table.add({{report::cut(tensor->entry.path(), 200)},
               {lockstep::to_string(tensor->entry.shape)},
               {std::string(lockstep::to_string(tensor->entry.dtype))},
               report::cell(bytes, report::bytes_text(bytes)),
               short_number(tensor->norm),
               short_number(tensor->min),
               short_number(tensor->max),
               report::cell(static_cast<double>(tensor->not_finite)),
               {tensor->digest_right ? "right" : "WRONG"}});
  }
  return table.to_html() + (some ? report::note(fmt::format("The largest {} of {} tensors.", order.size(),
                                                            inspection.tensors.size()))
                                 : "");
}

report::Page page_of(const checkpoint::Inspection& inspection) {
  const checkpoint::FileIndex& index = inspection.index;
  report::Page page{.title = "Checkpoint of step " + report::whole(index.position.step),
                    .lead = fmt::format("{} · written {}", index.path, index.created),
                    .body = facts_of(index),
                    .footer = ""};
  std::string wrong;
  for (const checkpoint::TensorSummary& tensor : inspection.tensors) {
    if (!tensor.digest_right) wrong += (wrong.empty() ? "" : ", ") + tensor.entry.path();
  }
  if (!wrong.empty())
    page.body += report::section(
        "Damage", report::note(report::cut("Values have not the digest of the manifest: " + wrong, 2'000)));
  page.body += report::section("Groups", groups_of(inspection));
  page.body += report::section("Tensors", tensors_of(inspection));
  Pairs configuration;
  for (const auto& [key, value] : report::keys_of_ini(index.config)) configuration.emplace_back(key, value);
  page.body += report::section("Configuration", report::configuration_html(configuration));
  Pairs provenance(index.provenance.begin(), index.provenance.end());
  page.body += report::section("Provenance", report::key_table(provenance));
  return page;
}

}  // namespace

ExitCode inspect(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "inspect FILE.h5 [--json] [--html FILE.html]",
                    "Shows what a checkpoint holds: position, names, shapes, types, norms, extremes,\n"
                    "counts of numbers that are not finite, and where it came from.");
  options.add()("json", "print one JSON document");
  add_html(options);
  options.positional("file");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const std::string file = options.required(values, "file", "a checkpoint is missing");
  const ResultPage page(values, session, values.count("json") > 0);
  std::optional<checkpoint::Inspection> inspection;
  on_rank_0(session, [&] {
    refuse_foreign(file);
    inspection = checkpoint::inspect(file);
    values.count("json") ? print_json(to_json(*inspection)) : print(to_text(*inspection));
  });
  page.write([&] { return page_of(*inspection); });
  return ExitCode::done;
}

}  // namespace lockstep::cli
