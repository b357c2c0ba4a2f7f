// Slurm: is it here, which version, does this run in a job, and how long still.
#include <array>
#include <cstdlib>
#include <regex>

#include "cli/doctor/command.h"
#include "cli/doctor/finding.h"
#include "lockstep/base/error.h"

namespace lockstep::cli::checkup {
namespace {

constexpr double answer_timeout_s = 2;
constexpr const char* subject = "slurm";

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// "22.05.8" of "slurm-wlm 22.05.8"
std::string version_in(const std::string& text) { return text.substr(text.rfind(' ') + 1); }

/// Ranks of several nodes under `srun --mpi=pmix` that pass MPI_Init's barriers one by one. Slurm makes a
/// fence without data along a tree, which since version 20.11 it leaves out for a step of fewer nodes than
/// TreeWidth (src/common/reverse_tree.c): a rank may then be sent what it is not yet ready to receive, and
/// die of it. A fence along a ring waits for all.
bool may_start_apart() {
  if (environment("PMIX_NAMESPACE").rfind("slurm.pmix", 0) != 0 ||
      std::atoi(environment("SLURM_STEP_NUM_NODES").c_str()) < 2)
    return false;
  const std::string fence = environment("SLURM_PMIX_FENCE");
  if (!fence.empty()) return fence != "ring";
  const auto site = output_of({"scontrol", "show", "config"}, answer_timeout_s);
  return !site || !std::regex_search(*site, std::regex("PMIxCollFence *= *ring"));
}

}  // namespace

Finding slurm(const Scene&) {
  const std::string job = environment("SLURM_JOB_ID");
  const auto version = output_of({"squeue", "--version"}, answer_timeout_s);
  if (job.empty()) {
    if (!version) return {subject, Verdict::ok, "none that answers here; not in a job", ""};
    return {subject, Verdict::ok, fmt::format("version {}; not in a job", version_in(*version)), ""};
  }
  const std::string restarts = environment("SLURM_RESTART_COUNT"), nodes = environment("SLURM_JOB_NUM_NODES");
  std::string text = fmt::format("job {}{}{}", job, nodes.empty() ? "" : ", nodes: " + nodes,
                                 restarts.empty() ? "" : ", restart " + restarts);
  if (may_start_apart()) {
    return {subject, Verdict::note,
            text +
                "; ranks that srun --mpi=pmix starts do not wait for one another in MPI_Init: one may crash "
                "there",
            "SLURM_PMIX_FENCE=ring in the environment of srun (jobs/site.sh sets it), or PMIxCollFence=ring "
            "in the site's mpi.conf"};
  }
  if (!version) {
    return {
        subject, Verdict::note, text + ", but squeue does not answer here",
        "inside a container bind squeue and its configuration, or rely on #SBATCH --signal to stop before "
        "the time limit"};
  }
  text = fmt::format("version {}, {}", version_in(*version), text);
  const auto left = output_of({"squeue", "-h", "-j", job, "-o", "%L"}, answer_timeout_s);
  if (!left || left->empty()) {
    return {subject, Verdict::note, text + "; squeue does not say how much time is left",
            "rely on #SBATCH --signal to stop before the time limit"};
  }
  text += ", time left " + left->substr(left->rfind('\n') + 1);
  const auto kinds = output_of({"srun", "--mpi=list"}, answer_timeout_s);
  if (kinds && kinds->find("pmix") == std::string::npos) {
    return {subject, Verdict::note, text + "; srun has no pmix", "start ranks with mpirun inside the job"};
  }
  return {subject, Verdict::ok, text + (kinds ? ", srun has pmix" : ""), ""};
}

}  // namespace lockstep::cli::checkup
