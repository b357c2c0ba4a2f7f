// lockstep bench allreduce: sums along the reduction tree, compared with MPI_Allreduce.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/bench.h"
#include "cli/result_page.h"
#include "comm/benchmark.h"
#include "report/chart.h"

namespace lockstep::cli {
namespace {

/// The sizes of --bytes.
std::vector<std::size_t> sizes_in(const std::vector<std::int64_t>& bytes) {
  constexpr std::int64_t element = sizeof(float), most = element * std::numeric_limits<int>::max();
  std::vector<std::size_t> sizes;
  for (const std::int64_t size : bytes) {
    if (size < element || size > most || size % element != 0)
      throw UsageError(
          "bench allreduce: --bytes {}: must be a multiple of {} from {} to {}; see lockstep bench allreduce "
          "--help",
          size, element, element, most);
    sizes.push_back(static_cast<std::size_t>(size));
  }
  return sizes;
}

/// Of one number of ranks, by ascending bytes.
using SumTimes = std::vector<comm::AllReduceTime>;

std::map<int, SumTimes> with_others(const SumTimes& times, const std::vector<nlohmann::json>& others) {
  std::map<int, SumTimes> by_ranks;
  by_ranks[times.front().ranks] = times;
  try {
    for (const nlohmann::json& other : others) {
      SumTimes read;
      for (const nlohmann::json& row : other["rows"])
        read.push_back({.bytes = row.at("bytes").get<std::size_t>(),
                        .ranks = row.at("ranks").get<int>(),
                        .lockstep_ms = row.at("lockstep_ms").get<double>(),
                        .mpi_ms = row.at("mpi_ms").is_number() ? row["mpi_ms"].get<double>() : 0,
                        .exact = true});
      if (!read.empty()) by_ranks.try_emplace(read.front().ranks, read);  // what was measured now counts
    }
  } catch (const nlohmann::json::exception& error) {
    throw DataError("--with: is not what bench allreduce --json prints: {}", error.what());
  }
  for (auto& [ranks, rows] : by_ranks) std::ranges::sort(rows, {}, &comm::AllReduceTime::bytes);
  return by_ranks;
}

double bandwidth_gb_s(std::size_t bytes, double ms) {
  return ms > 0 ? 1e-6 * static_cast<double>(bytes) / ms : 0;
}

/// One chart over sizes, a curve a number of ranks and way of summing.
report::Chart over_sizes(const std::map<int, SumTimes>& by_ranks, std::string title, std::string unit,
                         const std::function<double(std::size_t bytes, double ms)>& value) {
  report::Chart chart{.title = std::move(title), .unit = std::move(unit), .note = "", .dots = true};
  chart.x = {.name = "size of the vector", .kind = report::XAxis::Kind::bytes};
  std::size_t nth = 0;
  for (const auto& [ranks, rows] : by_ranks) {
    const std::string of_ranks = by_ranks.size() > 1 ? ", " + pluralized(ranks, "rank") : "";
    for (const bool is_mpi : {false, true}) {
      report::Curve curve{.label = (is_mpi ? "MPI_Allreduce" : "Lockstep") + of_ranks,
                          .style = fmt::format("c{}{}", nth % 7, is_mpi ? " dashed" : ""),
                          .run = "",
                          .points = {}};
      for (const comm::AllReduceTime& row : rows) {
        const double ms = is_mpi ? row.mpi_ms : row.lockstep_ms;
        if (ms <= 0) continue;
        curve.points.x.push_back(static_cast<double>(row.bytes));
        curve.points.y.push_back(value(row.bytes, ms));
      }
      if (!curve.points.x.empty()) chart.curves.push_back(std::move(curve));
    }
    ++nth;
  }
  return chart;
}

/// Bandwidth of the largest vectors that all numbers of ranks have.
report::Chart over_ranks(const std::map<int, SumTimes>& by_ranks) {
  report::Chart chart{.title = "Bandwidth over ranks", .unit = "GB/s", .note = "", .dots = true};
  chart.x = {.name = "ranks", .kind = report::XAxis::Kind::counts};
  std::size_t nth = 0;
  const SumTimes& first = by_ranks.begin()->second;
  for (auto size = first.rbegin(); size != first.rend() && nth < 4; ++size) {
    report::Curve curve{.label = report::bytes_text(static_cast<double>(size->bytes)),
                        .style = fmt::format("c{}", nth),
                        .run = "",
                        .points = {}};
    for (const auto& [ranks, rows] : by_ranks) {
      const auto row = std::ranges::find(rows, size->bytes, &comm::AllReduceTime::bytes);
      if (row == rows.end() || row->lockstep_ms <= 0) continue;
      curve.points.x.push_back(ranks);
      curve.points.y.push_back(bandwidth_gb_s(row->bytes, row->lockstep_ms));
    }
    if (curve.points.x.size() < by_ranks.size()) continue;
    chart.curves.push_back(std::move(curve));
    ++nth;
  }
  return chart;
}

report::Page page_of(const SumTimes& times, const std::vector<nlohmann::json>& others,
                     const Session& session) {
  const std::map<int, SumTimes> by_ranks = with_others(times, others);
  report::Page page{.title = "All-reduce", .lead = "", .body = "", .footer = ""};
  page.lead =
      "Sums of float32 vectors over all ranks along the reduction tree, and MPI_Allreduce in place. "
      "Medians; each time is that of the slowest rank.";
  const bool exact = std::ranges::all_of(times, &comm::AllReduceTime::exact);
  double best = 0;
  for (const comm::AllReduceTime& time : times)
    best = std::max(best, bandwidth_gb_s(time.bytes, time.lockstep_ms));
  page.body = report::facts(
      std::vector<std::pair<std::string, std::string>>{{"ranks", ranks_and_nodes(session.world())},
                                                       {"sizes", std::to_string(times.size())},
                                                       {"greatest bandwidth, GB/s", report::number(best)},
                                                       {"every bit right", exact ? "yes" : "NO"}});
  std::string charts =
      to_html(over_sizes(by_ranks, "Bandwidth", "GB/s: bytes of the vector over the time", bandwidth_gb_s)) +
      to_html(over_sizes(by_ranks, "Time", "ms", [](std::size_t, double ms) { return ms; }));
  if (by_ranks.size() > 1) charts += to_html(over_ranks(by_ranks));
  page.body += report::section("Over sizes", "<div class=\"charts\">" + charts + "</div>");
  report::Table table({"ranks", "size", "Lockstep, ms", "MPI, ms", "MPI / Lockstep", "Lockstep, GB/s"});
  for (const auto& [ranks, rows] : by_ranks) {
    for (const comm::AllReduceTime& row : rows) {
      const bool mpi = row.mpi_ms > 0;
      const auto bytes = static_cast<double>(row.bytes);
      table.add({report::cell(ranks), report::cell(bytes, report::bytes_text(bytes)),
                 report::cell(row.lockstep_ms),
                 report::cell(row.mpi_ms, mpi ? report::number(row.mpi_ms) : "–"),
                 report::cell(mpi ? row.mpi_ms / row.lockstep_ms : 0,
                              mpi ? fmt::format("{:.2f}", row.mpi_ms / row.lockstep_ms) : "–"),
                 report::cell(bandwidth_gb_s(row.bytes, row.lockstep_ms))});
    }
  }
  page.body += report::section("Every size", table.to_html()) + environment_section(session);
  return page;
}

}  // namespace

ExitCode bench_allreduce(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "bench allreduce [--bytes N ...] [OPTIONS]",
                    "Times the sum of float32 vectors over all ranks along the reduction tree, and\n"
                    "MPI_Allreduce in place, in alternation; medians of the slowest rank. Every\n"
                    "result is checked, bit by bit: exit code 5 if one is wrong.");
  options.add()("bytes", po::value<std::vector<std::int64_t>>()->multitoken(),
                "sizes, multiples of 4; default: 64 KiB to 100 MiB, odd lengths among them");
  options.add()("json", "print one JSON document");
  add_html(options);
  add_with(options);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const ResultPage page(values, session, values.count("json") > 0);
  const std::vector<nlohmann::json> others = results_of_others(values, session, {"rows"});

  constexpr std::size_t kib = 1 << 10, mib = 1 << 20, element = sizeof(float);
  const std::vector<std::size_t> usual{64 * kib, 256 * kib + element, mib,      4 * mib + 7 * element,
                                       16 * mib, 25 * mib - element,  100 * mib};
  const std::vector<comm::AllReduceTime> times = comm::time_all_reduce(
      session.transport(),
      values.count("bytes") ? sizes_in(values["bytes"].as<std::vector<std::int64_t>>()) : usual);
  if (session.world().rank() == 0 && values.count("json")) {
    nlohmann::json rows = nlohmann::json::array();
    for (const comm::AllReduceTime& time : times) {
      nlohmann::json row{{"bytes", time.bytes},
                         {"ranks", time.ranks},
                         {"lockstep_ms", time.lockstep_ms},
                         {"mpi_ms", nullptr},
                         {"ratio", nullptr}};
      if (time.mpi_ms > 0) {
        row["mpi_ms"] = time.mpi_ms;
        row["ratio"] = time.mpi_ms / time.lockstep_ms;
      }
      rows.push_back(std::move(row));
    }
    print_json({{"rows", rows}});
  } else if (session.world().rank() == 0) {
    fmt::print("{}, ms\n{:>12}{:>12}{:>12}{:>10}{:>8}\n", ranks_and_nodes(session.world()), "bytes",
               "lockstep", "MPI", "ratio", "exact");
    for (const comm::AllReduceTime& time : times) {
      fmt::print("{:>12}{:>12.4f}{:>12}{:>10}{:>8}\n", time.bytes, time.lockstep_ms,
                 time.mpi_ms > 0 ? fmt::format("{:.4f}", time.mpi_ms) : "-",
                 time.mpi_ms > 0 ? fmt::format("{:.2f}", time.mpi_ms / time.lockstep_ms) : "-",
                 time.exact ? "yes" : "NO");
    }
  }
  page.write([&] { return page_of(times, others, session); });
  for (const comm::AllReduceTime& time : times) {
    if (!time.exact)
      throw FailureError(
          "bench allreduce: the sum of {} bytes on {} ranks has not the bits of the reduction tree",
          time.bytes, time.ranks);
  }
  return ExitCode::done;
}

}  // namespace lockstep::cli
