#include "train/run/environment_fingerprint.h"

#include <H5public.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "base/files.h"
#include "base/launcher.h"
#include "base/text.h"
#include "comm/mpi_calls.h"
#include "kernels/math_library.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/option.h"
#include "lockstep/checkpoint/state_dict.h"
#include "train/data_sets.h"

namespace lockstep::train {
namespace {

constexpr std::uint64_t max_program_bytes = std::uint64_t{64} << 20;
constexpr std::uint64_t max_data_bytes = std::uint64_t{2} << 20;
constexpr const char* instruction_set_name = "instruction set";

/// Without the characters that separate entries in a gathered text.
std::string plain(std::string text) {
  std::ranges::replace_if(
      text, [](char letter) { return letter == '\t' || letter == '\n'; }, ' ');
  return text;
}

std::string hdf5_version() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

void add_file(Fingerprint& entries, const std::string& key, const std::string& path) {
  if (path.empty()) return;
  entries.push_back({plain(fmt::format("{} {}", key, path)), file_digest(path, max_data_bytes)});
}

std::string lines_of_entries(const Fingerprint& entries) {
  std::string text;
  for (const FingerprintEntry& entry : entries) text += fmt::format("{}\t{}\n", entry.name, entry.value);
  return text;
}

Fingerprint from_text(const std::string& text) {
  Fingerprint entries;
  for (const std::string_view line : lines_of(text))
    if (const std::size_t tab = line.find('\t'); tab != line.npos)
      entries.push_back({std::string(line.substr(0, tab)), std::string(line.substr(tab + 1))});
  return entries;
}

}  // namespace

std::string file_digest(const std::string& path, std::uint64_t max_bytes) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return fmt::format("no such file ({})", std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return "no regular file";
  std::vector<XXH64_hash_t> digests;
  try {
    const OpenFile file(path, OpenFile::Mode::read);
    const std::uint64_t size = file.size();
    const auto digest = [&](std::uint64_t from, std::uint64_t to) {
      for (std::vector<char> block; from < to; from += block.size()) {
        block.resize(std::min<std::uint64_t>(to - from, std::uint64_t{1} << 20));
        file.read_at(from, block.data(), block.size());
        digests.push_back(XXH3_64bits(block.data(), block.size()));
      }
    };
    digest(0, size <= max_bytes ? size : max_bytes / 2);
    if (size > max_bytes) digest(size - max_bytes / 2, size);
    return fmt::format("{} bytes, digest {:016x}", size,
                       XXH3_64bits(digests.data(), digests.size() * sizeof digests[0]));
  } catch (const Error& error) {
    return fmt::format("cannot be read ({})", error.what());
  }
}

Fingerprint program_fingerprint() {
  const checkpoint::Provenance build = checkpoint::provenance_of(*comm::make_self_communicator());
  Fingerprint entries;
  for (const char* name : {"version", "git", "compiler", "build_type"})
    entries.push_back({fmt::format("program's {}", name), plain(build.at(name))});
  entries.push_back({"program", file_digest("/proc/self/exe", max_program_bytes)});
  entries.push_back({"HDF5", hdf5_version()});
  entries.push_back({"MPI", plain(comm::mpi_description())});
  const kernels::MathLibrary& library = kernels::math_library();
  entries.push_back({"math library", plain(fmt::format("{} ({})", library.version, library.build))});
  return entries;
}

FingerprintEntry instruction_set_entry() {
  return {instruction_set_name, kernels::math_library().instruction_set};
}

Fingerprint configuration_fingerprint(const Config& config) {
  Fingerprint entries;
  const std::string text = to_text(config);
  for (const IniLine& line : ini_lines(text)) {
    if (line.kind != IniLine::Kind::key) continue;
    const std::string value = plain(std::string(line.value));
    entries.push_back({plain(line.name()), value.empty() ? "''" : value});
  }
  for (const TrainingFile& file : training_files(config.data)) add_file(entries, "data.train", file.path);
  add_file(entries, "data.eval", config.data.eval);
  add_file(entries, "train.init", config.train.init);
  return entries;
}

std::string Difference::describe(const comm::Topology& topology) const {
  const auto host_of = [&](int of) {
    return topology.host_names[static_cast<std::size_t>(topology.node_of_rank[static_cast<std::size_t>(of)])];
  };
  const std::string host = host_of(rank), other_host = host_of(other);
  if (host != other_host)
    return fmt::format("{}: {} has {}, {} has {}", name, host, value, other_host, other_value);
  return fmt::format("{}: rank {} on {} has {}, rank {} on {} has {}", name, rank, host, value, other,
                     other_host, other_value);
}

std::vector<Difference> differences(comm::HostGroup& world, const Fingerprint& mine) {
  const std::vector<std::string> texts = world.all_gather_texts(lines_of_entries(mine));
  std::vector<std::unordered_map<std::string, std::string>> of_rank(texts.size());
  std::vector<std::string> names;  // in the order of the first rank that has them
  std::unordered_set<std::string> named;
  std::vector<std::size_t> same_as(texts.size());  // most ranks have the fingerprint of an earlier rank
  std::unordered_map<std::string, std::size_t> first_with;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    same_as[rank] = first_with.emplace(texts[rank], rank).first->second;
    if (same_as[rank] != rank) continue;
    for (FingerprintEntry& entry : from_text(texts[rank])) {
      if (named.insert(entry.name).second) names.push_back(entry.name);
      of_rank[rank].emplace(entry.name, std::move(entry.value));
    }
  }
  const auto value_of = [&](std::size_t rank, const std::string& name) -> std::string {
    const auto found = of_rank[rank].find(name);
    return found == of_rank[rank].end() ? "nothing" : found->second;
  };
  std::vector<Difference> found;
  for (const std::string& name : names) {
    const std::string value = value_of(0, name);
    for (std::size_t rank = 1; rank < texts.size(); ++rank) {
      if (same_as[rank] != rank || value_of(rank, name) == value) continue;
      found.push_back({name, 0, static_cast<int>(rank), value, value_of(rank, name)});
      break;
    }
  }
  return found;
}

namespace {

/// If srun and this MPI use different PMIs, every task becomes a world of one.
void check_not_one_of_many() {
  const int tasks = launcher::srun_tasks();
  if (tasks < 2 || launcher::size() >= 0) return;  // a launcher in the step has started this rank
  throw UsageError(
      "srun started {} tasks, and each of them is the only rank of its world: srun and this MPI do not "
      "speak the same PMI; use srun --mpi={} (srun --mpi=list shows the choices), or mpirun",
      tasks, comm::own_pmi);
}

}  // namespace

void check_same_environment(comm::HostGroup& world, const Config& config, const RunOptions& options) {
  if (world.size() == 1) return check_not_one_of_many();
  Fingerprint entries = program_fingerprint();
  for (FingerprintEntry& entry : configuration_fingerprint(config)) entries.push_back(std::move(entry));
  entries.push_back({"--run", plain(options.directory)});
  entries.push_back({"--resume", plain(options.resume)});
  entries.push_back({"--fork", plain(options.fork)});
  entries.push_back(instruction_set_entry());
  const std::vector<Difference> found = differences(world, entries);
  if (found.empty()) return;
  const Difference& first = found.front();
  const std::string text = first.describe(world.topology());
  if (first.name == instruction_set_name) {
    if (world.rank() != 0) return;
    Log().warning("{}: the same bits need the same ranks on the same nodes", text);
    return;
  }
  throw UsageError("ranks differ in {}; give every rank the same program, configuration and data", text);
}

}  // namespace lockstep::train
