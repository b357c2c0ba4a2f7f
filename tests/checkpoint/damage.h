// What the tests of damage share: a small checkpoint, and everything that reads one, held to the same
// promise.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>

#include "checkpoint/sample.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/inspect.h"
#include "lockstep/checkpoint/store.h"

namespace lockstep::test {

/// Three sections, more links and attributes than HDF5 keeps in an object's header.
inline checkpoint::StateDict small_state_dict() {
  checkpoint::StateDict small;
  small.sections.push_back(
      {"model", {{"a.weight", Tensor::zeros({40, 9})}, {"a.bias", Tensor::zeros({9})}}, {}});
  for (int i = 0; i < 10; ++i)
    small.sections[0].tensors.push_back({"b." + std::to_string(i), Tensor::zeros({3 + i})});
  small.sections.push_back({"ema/0.5", {{"a.weight", Tensor::zeros({40, 9})}}, {{"rate", 0.5, {}}}});
  std::int64_t updates = 3;
  small.sections.back().attributes.push_back({"updates", updates, [](const auto&) {}});
  small.sections.push_back({"optimizer/exp_avg", {{"a.bias", Tensor::zeros({9})}}, {}});
  small.position = {5, 1, 320, 4, 9};
  small.config = "[train]\nsteps = 10\n";
  small.provenance = {{"version", "1.2.3"}, {"hosts", "node1 node2"}};
  return small;
}

/// A run with one small checkpoint, whole on the disk and in memory.
struct SmallRun {
  std::unique_ptr<comm::HostGroup> self = comm::make_self_communicator();
  TemporaryFolder folder;
  checkpoint::Store store{folder.path(), *self};
  const std::string file_name = "step-000000005.h5", path = store.directory() + "/" + file_name;
  checkpoint::StateDict state_dict = small_state_dict();
  std::string bytes;

  SmallRun() {
    fill(state_dict, 5);
    checkpoint::save_file(path, state_dict, *self);
    bytes = read_bytes(path);
  }

  enum class Outcome { refused, newer, right };
  /// Lets inspect, verify, load_file and resume read what is at `path` now. All refuse it with one DataError
  /// of a line, all say that its format is a newer one, or all give exactly what was saved; anything else is
  /// thrown as a text.
  Outcome read_in_every_way() {
    int said_newer = 0;
    const auto wrong = [](const std::string& what) { throw std::logic_error(what); };
    const auto refuses = [&](const char* who, const std::function<void()>& read) {
      std::string what;
      try {
        read();
        return false;
      } catch (const DataError& error) {
        what = error.what();
      } catch (const UsageError& error) {
        what = error.what();
        if (what.find("has format_version ") == std::string::npos) throw;
        ++said_newer;
      }
      if (what.find('\n') != std::string::npos || what.size() > 4000 ||
          what.find(file_name) == std::string::npos)
        wrong(std::string(who) + " says: " + what);
      return true;
    };
    const auto is_index = [&](const checkpoint::FileIndex& index) {
      return index.position == state_dict.position && index.config == state_dict.config;
    };
    bool whole = false;
    const bool verify_refuses = refuses("verify", [&] {
      const checkpoint::VerifyReport report = checkpoint::verify(path, *self);
      whole = report.whole();
      for (const std::string& problem : report.problems) {
        if (problem.find('\n') != std::string::npos) wrong("verify says: " + problem);
      }
    });
    if (verify_refuses && said_newer == 0) wrong("verify throws what it should report");

    bool inspected_whole = true;
    const bool inspect_refuses = refuses("inspect", [&] {
      const checkpoint::Inspection inspection = checkpoint::inspect(path);
      if (!is_index(inspection.index)) wrong("inspect shows another position or configuration");
      for (const checkpoint::TensorSummary& tensor : inspection.tensors)
        inspected_whole = inspected_whole && tensor.digest_right;
    });
    if ((!inspect_refuses && inspected_whole) != whole) wrong("inspect and verify disagree");

    const checkpoint::StateDict loaded = small_state_dict();
    const bool load_refuses = refuses("load_file", [&] {
      const checkpoint::LoadReport report = checkpoint::load_file(path, loaded, *self);
      if (!same_bytes(loaded, state_dict) || !is_index(report.index)) wrong("load_file loads other values");
    });
    if (load_refuses == whole) wrong("load_file and verify disagree");

    const checkpoint::StateDict resumed = small_state_dict();
    const bool resume_refuses = refuses("resume", [&] {
      if (store.resume_state_dict(resumed) != state_dict.position.step) wrong("resume goes on elsewhere");
      if (!same_bytes(resumed, state_dict)) wrong("resume loads other values");
    });
    if (resume_refuses == whole) wrong("resume and verify disagree");
    if (said_newer == 4) return Outcome::newer;
    if (said_newer > 0) wrong("only some say that the format is a newer one");
    return whole ? Outcome::right : Outcome::refused;
  }
};

/// Chance, from a seed.
struct Chance {
  std::mt19937_64 engine;
  std::size_t below(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(engine); }
  /// A small change of a byte, an extreme one, or any.
  char changed(char byte) {
    switch (below(5)) {
      case 0:
        return static_cast<char>(byte ^ (1 << below(8)));
      case 1:
        return static_cast<char>(byte + 1);
      case 2:
        return static_cast<char>(below(2) == 0 ? 0 : 0xff);
      case 3:
        return static_cast<char>(byte - 1);
      default:
        return static_cast<char>(below(256));
    }
  }
};

/// LOCKSTEP_TEST_SEED, or always the same: a campaign draws seeds, the suites do not fail by chance.
inline std::uint64_t seed_of_test() {
  const char* set = std::getenv("LOCKSTEP_TEST_SEED");
  const std::uint64_t seed = set ? std::strtoull(set, nullptr, 10) : 1;
  BOOST_TEST_MESSAGE("LOCKSTEP_TEST_SEED=" << seed);
  return seed;
}

/// Files of a slow case: LOCKSTEP_TEST_MUTATIONS, or a thousand.
inline int many_files() {
  const char* set = std::getenv("LOCKSTEP_TEST_MUTATIONS");
  return set ? std::atoi(set) : 1000;
}

/// A run whose checkpoint is damaged again and again, by numbers drawn from the seed.
struct Mutations : SmallRun {
  std::uint64_t seed = seed_of_test();

  /// Writes a file with this damage and reads it in every way.
  void try_one(int number, const std::function<void(std::string&, Chance&)>& damage) {
    Chance random{std::mt19937_64(seed + static_cast<std::uint64_t>(number))};
    std::string damaged = bytes;
    damage(damaged, random);
    for (const auto& entry : std::filesystem::directory_iterator(store.directory()))
      std::filesystem::remove(entry);
    write_bytes(path, damaged);
    read_in_every_way();
  }
};

}  // namespace lockstep::test
