// The checks of Slurm, version, job, remaining time, how srun starts ranks, and of the job scripts' files of
// settings.
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <regex>
#include <sstream>

#include "cli/doctor/checks.h"
#include "comm/mpi_calls.h"

namespace lockstep::cli::checks {
namespace {

/// The output of a shell command; none if it fails. After 2 s it is killed with its children, and fails.
std::optional<std::string> output_of(const std::string& command) {
  std::FILE* const pipe = ::popen(fmt::format("timeout -s KILL 2 {} </dev/null 2>&1", command).c_str(), "re");
  if (!pipe) return std::nullopt;
  std::string text;
  std::array<char, 4096> buffer{};
  while (const std::size_t bytes = std::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), bytes);
  if (::pclose(pipe) != 0) return std::nullopt;
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// Whether ranks on several nodes under `srun --mpi=pmix` may leave the barriers of MPI_Init at different
/// times. Slurm runs a fence without data along a tree, and since version 20.11 skips it in a step of fewer
/// nodes than TreeWidth (src/common/reverse_tree.c). A rank may then receive a message before it is ready,
/// and crash. A fence along a ring waits for all ranks.
bool may_start_apart() {
  if (!environment("PMIX_NAMESPACE").starts_with("slurm.pmix") ||
      std::atoi(environment("SLURM_STEP_NUM_NODES").c_str()) < 2)
    return false;
  const std::string fence = environment("SLURM_PMIX_FENCE");
  if (!fence.empty()) return fence != "ring";
  const auto site = output_of("scontrol show config");
  return !site || !std::regex_search(*site, std::regex("PMIxCollFence *= *ring"));
}

}  // namespace

Result slurm(const Context&) {
  const std::string job = environment("SLURM_JOB_ID");
  auto version = output_of("squeue --version");
  if (version) version = version->substr(version->rfind(' ') + 1);  // "slurm-wlm 22.05.8"
  if (job.empty()) {
    if (version) return ok(fmt::format("version {}; not in a job", *version));
    return ok(output_of("sh -c 'command -v squeue'") ? "squeue does not answer; not in a job"
                                                     : "not installed");
  }
  const std::string restarts = environment("SLURM_RESTART_COUNT"), nodes = environment("SLURM_JOB_NUM_NODES");
  std::string text = fmt::format("job {}{}{}", job, nodes.empty() ? "" : ", nodes: " + nodes,
                                 restarts.empty() ? "" : ", restart " + restarts);
  if (may_start_apart())
    return note(
        text +
            "; ranks that srun --mpi=pmix starts do not wait for each other in MPI_Init: one may crash there",
        "set SLURM_PMIX_FENCE=ring in the environment of srun (jobs/site.sh does), or PMIxCollFence=ring in "
        "the site's mpi.conf");
  if (!version)
    return note(
        text + ", but squeue does not answer here",
        "bind squeue and its configuration into the container, or use #SBATCH --signal to stop before "
        "the time limit");
  text = fmt::format("version {}, {}", *version, text);
  const auto left = output_of("squeue -h -j \"$SLURM_JOB_ID\" -o %L");
  if (!left || left->empty())
    return note(text + "; squeue does not report the remaining time",
                "use #SBATCH --signal to stop before the time limit");
  text += ", time left " + left->substr(left->rfind('\n') + 1);
  const auto plugins = output_of("srun --mpi=list");
  if (plugins && plugins->find(comm::own_pmi) == std::string::npos)
    return note(fmt::format("{}; srun does not support {}", text, comm::own_pmi),
                "start the ranks with mpirun inside the job");
  return ok(plugins ? fmt::format("{}, srun supports {}", text, comm::own_pmi) : text);
}

Result site_files(const Context&) {
  const uid_t user = ::geteuid();
  const passwd* const entry = ::getpwuid(user);
  const std::string user_name = entry ? entry->pw_name : "";
  const auto is_private = [&](gid_t id) {
    const ::group* const found = user != 0 && id == ::getegid() ? ::getgrgid(id) : nullptr;
    return found && found->gr_name == user_name;
  };
  const auto others_write = [&](const std::string& path) {
    struct stat file {};
    return ::stat(path.c_str(), &file) == 0 &&
           ((file.st_mode & 002) != 0 || ((file.st_mode & 020) != 0 && !is_private(file.st_gid)) ||
            (file.st_uid != 0 && file.st_uid != user));
  };
  const char* const named = std::getenv("LOCKSTEP_SITE");
  std::istringstream names(
      named ? named : "/etc/lockstep/site.sh:" + environment("HOME") + "/.config/lockstep/site.sh");
  std::string read, refused;
  for (std::string name; std::getline(names, name, ':');) {
    if (::access(name.c_str(), F_OK) != 0) continue;
    const auto folder = std::filesystem::absolute(name).parent_path().string();
    const bool is_read = ::access(name.c_str(), R_OK) == 0 && !others_write(name) && !others_write(folder);
    (is_read ? read : refused) += " " + name;
  }
  const std::string text = "job scripts read" + (read.empty() ? " their defaults alone" : read);
  if (refused.empty()) return ok(text);
  return note(text + ", but not" + refused + ", which others may write or this user cannot read",
              "chmod go-w the file and its folder");
}

}  // namespace lockstep::cli::checks
