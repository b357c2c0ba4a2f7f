// lockstep bench allreduce: sums along the reduction tree, compared with MPI_Allreduce.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "comm/benchmark.h"

namespace lockstep::cli {
namespace {

/// The sizes of --bytes. UsageError for a size that one MPI_Allreduce cannot take.
std::vector<std::size_t> sizes_in(const std::vector<std::int64_t>& bytes) {
  constexpr std::int64_t element = sizeof(float), max_bytes = element * std::numeric_limits<int>::max();
  std::vector<std::size_t> sizes;
  for (const std::int64_t size : bytes) {
    if (size < element || size > max_bytes || size % element != 0)
      throw UsageError("bench allreduce: --bytes {}: must be a multiple of {} from {} to {}", size, element,
                       element, max_bytes);
    sizes.push_back(static_cast<std::size_t>(size));
  }
  return sizes;
}

}  // namespace

ExitCode bench_allreduce(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "bench allreduce [--bytes N ...] [OPTIONS]",
                    "Times sums of float32 vectors over all ranks along the reduction tree and, in\n"
                    "alternation, MPI_Allreduce in place. Times are medians of the slowest rank.\n"
                    "Compares every sum with the expected bits; exit code 5 if one differs.");
  options.add()("bytes", po::value<std::vector<std::int64_t>>()->multitoken(),
                "vector sizes in bytes, multiples of 4; default: 64 KiB to 100 MiB, including odd lengths");
  add_output(options);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const ResultOutput output(values, session);

  constexpr std::size_t kib = 1 << 10, mib = 1 << 20, element = sizeof(float);
  const std::vector<std::size_t> usual{64 * kib, 256 * kib + element, mib,      4 * mib + 7 * element,
                                       16 * mib, 25 * mib - element,  100 * mib};
  const std::vector<comm::AllReduceTime> times = comm::time_all_reduce(
      session.transport(),
      values.count("bytes") ? sizes_in(values["bytes"].as<std::vector<std::int64_t>>()) : usual);
  nlohmann::json rows = nlohmann::json::array();
  for (const comm::AllReduceTime& time : times) {
    const bool mpi = time.mpi_ms > 0;
    rows.push_back({{"bytes", time.bytes},
                    {"ranks", time.ranks},
                    {"lockstep_ms", time.lockstep_ms},
                    {"mpi_ms", mpi ? nlohmann::json(time.mpi_ms) : nlohmann::json()},
                    {"ratio", mpi ? nlohmann::json(time.mpi_ms / time.lockstep_ms) : nlohmann::json()}});
  }
  const auto print_text = [&] {
    fmt::print("{}, ms\n{:>12}{:>12}{:>12}{:>10}{:>8}\n", ranks_and_nodes(session.world()), "bytes",
               "lockstep", "MPI", "ratio", "exact");
    for (const comm::AllReduceTime& time : times) {
      fmt::print("{:>12}{:>12.4f}{:>12}{:>10}{:>8}\n", time.bytes, time.lockstep_ms,
                 time.mpi_ms > 0 ? fmt::format("{:.4f}", time.mpi_ms) : "-",
                 time.mpi_ms > 0 ? fmt::format("{:.2f}", time.mpi_ms / time.lockstep_ms) : "-",
                 time.exact ? "yes" : "NO");
    }
  };
  const bool exact = std::ranges::all_of(times, &comm::AllReduceTime::exact);
  show(output, session, {{"rows", std::move(rows)}}, print_text,
       {"All-reduce",
        "Sums of float32 vectors over all ranks along the reduction tree, and MPI_Allreduce in place. "
        "Times are medians of the slowest rank.",
        {{"all bits correct", exact ? "yes" : "NO"}}});
  for (const comm::AllReduceTime& time : times) {
    if (!time.exact)
      throw FailureError(
          "bench allreduce: the sum of {} bytes on {} ranks differs from the sum along the reduction tree",
          time.bytes, time.ranks);
  }
  return ExitCode::done;
}

}  // namespace lockstep::cli
