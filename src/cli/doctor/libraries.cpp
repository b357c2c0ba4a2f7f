// HDF5, oneDNN, and what there is for GPUs.
#include <H5public.h>
#include <dnnl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/text.h"
#include "cli/doctor/finding.h"
#include "comm/nccl.h"
#include "kernels/gpus.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::cli::checkup {
namespace {

struct Version {
  unsigned major = 0, minor = 0, release = 0;
  auto operator<=>(const Version&) const = default;
};

/// Devices that NVIDIA's driver has made: /dev/nvidia0, /dev/nvidia1, ...
int gpu_devices() {
  int count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/dev", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    constexpr std::string_view prefix = "nvidia";
    if (name.size() > prefix.size() && name.starts_with(prefix) &&
        name.find_first_not_of("0123456789", prefix.size()) == std::string::npos)
      ++count;
  }
  return count;
}

int gpus_asked_for() {
  const char* const text = std::getenv("SLURM_GPUS_ON_NODE");
  return text ? std::atoi(text) : 0;
}

}  // namespace

Finding hdf5(const Scene&) {
  const char* const subject = "hdf5";
  Version version;
  H5get_libversion(&version.major, &version.minor, &version.release);
  std::string text = fmt::format("HDF5 {}.{}.{}", version.major, version.minor, version.release);
  if (version < Version{1, 10, 0}) return {subject, Verdict::problem, text, "install version 1.10 or newer"};
  constexpr Version built{H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE};
  if (version != built) {
    return {
        subject, Verdict::problem,
        fmt::format("{}; the program was built with {}.{}.{}", text, built.major, built.minor, built.release),
        "load the version it was built with (LD_LIBRARY_PATH, module), or build again: HDF5 ends programs "
        "whose version differs"};
  }
  const char* const locking = std::getenv("HDF5_USE_FILE_LOCKING");
  if (locking) text += fmt::format(", HDF5_USE_FILE_LOCKING={}", locking);
  return {subject, Verdict::ok, text, ""};
}

Finding onednn(const Scene&) {
  const dnnl_version_t* const version = dnnl_version();
  return {"onednn", Verdict::ok,
          fmt::format("oneDNN {}.{}.{}, {}", version->major, version->minor, version->patch,
                      kernels::make_cpu_backend(1)->instruction_set()),
          ""};
}

Finding gpus(const Scene&) {
  const char* const subject = "gpu";
  const kernels::Gpus gpus = kernels::find_gpus();
  const int asked = gpus_asked_for();
  if (!gpus.built) {
    const int found = gpu_devices();
    const std::string text = "this build computes on CPUs only";
    if (found == 0 && asked == 0) return {subject, Verdict::ok, text, ""};
    return {subject, Verdict::note,
            fmt::format("{}; {} here, {} asked of Slurm", text, pluralized(found, "GPU"), asked),
            "ask for no GPUs, which would stand idle, or build with -DLOCKSTEP_CUDA=ON"};
  }
  const std::string driver = gpus.driver.empty() ? "no driver" : "driver for CUDA " + gpus.driver;
  const std::string versions = fmt::format("built with CUDA {}, {}", gpus.runtime, driver);
  if (!gpus.problem.empty()) {
    return {subject, Verdict::problem, fmt::format("{}; {}", gpus.problem, versions), gpus.remedy};
  }
  const int found = static_cast<int>(gpus.visible.size());
  if (found < asked) {
    return {subject, Verdict::problem,
            fmt::format("{} of {} GPUs that the job asked for; {}", found, asked, versions),
            "exclude this node (sbatch --exclude) and tell its administrators"};
  }
  if (found == 0) return {subject, Verdict::ok, fmt::format("none here: computes on CPUs; {}", versions), ""};
  std::vector<std::string> names;
  for (const kernels::Gpu& gpu : gpus.visible) names.push_back(gpu.describe());
  return {subject, Verdict::ok, fmt::format("{}; {}", fmt::join(names, ", "), versions), ""};
}

Finding nccl(const Scene&) {
  const char* const subject = "nccl";
  const kernels::Gpus gpus = kernels::find_gpus();
  if (!gpus.built) return {subject, Verdict::ok, "not built in: sums go through MPI", ""};
  const comm::NcclFound found = comm::find_nccl();
  if (found.problem.empty()) return {subject, Verdict::ok, found.version, ""};
  if (gpus.visible.empty()) return {subject, Verdict::ok, "none here: sums go through MPI", ""};
  return {subject, gpus.visible.size() > 1 ? Verdict::problem : Verdict::note, found.problem, found.remedy};
}

}  // namespace lockstep::cli::checkup
