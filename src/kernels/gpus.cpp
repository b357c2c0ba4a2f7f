#include "kernels/gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace lockstep::kernels {

std::string Gpu::describe() const {
  return fmt::format("{} (sm_{}{}, {:.1f} GiB)", name, major, minor,
                     static_cast<double>(memory_bytes) / (1 << 30));
}

std::string name_of(const Device& device) {
  if (device == Device::cpu()) return "cpu";
  const Gpus gpus = find_gpus();
  const auto index = static_cast<std::size_t>(device.index);
  return index < gpus.visible.size() ? gpus.visible[index].name : to_string(device);
}

GpuCode code_for(std::string_view architectures, int major, int minor) {
  if (major < 8)
    return {.runs = false,
            .remark = fmt::format("GPUs of compute capability {}.{} are not supported", major, minor),
            .remedy = "use one of 8.0 (A100, RTX 30) or later"};
  const int capability = 10 * major + minor;
  std::string machine_code;
  GpuCode code{.runs = false, .remark = {}, .remedy = {}};
  while (!architectures.empty()) {
    const std::string_view one = architectures.substr(0, architectures.find_first_of(" ;"));
    architectures.remove_prefix(std::min(one.size() + 1, architectures.size()));
    int number = 0;
    const auto [after, error] = std::from_chars(one.data(), one.data() + one.size(), number);
    if (error != std::errc()) return {};  // native
    // Machine code runs on later GPUs of its major version, and PTX on all later ones; both of "90a" only on
    // that kind of GPU, and those of "100f" on later ones of its major version.
    const char kind = after == one.data() + one.size() ? '-' : *after;
    const bool machine = !one.ends_with("-virtual"), ptx = !one.ends_with("-real");
    const bool of_major = number / 10 == major && number <= capability;
    if (machine && (kind == 'a' ? number == capability : of_major)) return {};
    if (machine) machine_code += fmt::format(" sm_{}", one.substr(0, one.find('-')));
    code.runs |= ptx && (kind == 'a' ? number == capability : kind == 'f' ? of_major : number <= capability);
  }
  code.remark = fmt::format(
      "this build has {} sm_{}{}",
      machine_code.empty() ? "no machine code for" : "machine code for" + machine_code + ", not for",
      capability,
      code.runs ? ": the first start on a node compiles its kernels, which takes a while"
                : ", nor PTX that could be compiled for it");
  code.remedy = fmt::format("build with -DLOCKSTEP_CUDA_ARCHITECTURES={}", capability);
  return code;
}

std::optional<double> bf16_tflops_of(std::string_view gpu) {
  struct Peak {
    std::string_view name;
    double tflops;
    bool parts = true;  ///< what follows the name, as in "A100-SXM4-80GB", does not change this
  };
  constexpr std::array peaks{Peak{"GB200", 2500},
                             Peak{"B200", 2250},
                             Peak{"GH200", 989},
                             Peak{"H200 NVL", 836},
                             Peak{"H200", 989},
                             Peak{"H100 NVL", 835},
                             Peak{"H100 PCIe", 756},
                             Peak{"H100", 989},
                             Peak{"A100", 312},
                             Peak{"L40S", 362, false},
                             Peak{"L40", 181, false},
                             Peak{"L4", 121, false},
                             Peak{"GeForce RTX 4090", 165, false},
                             Peak{"GeForce RTX 3090", 71, false}};
  constexpr std::string_view maker = "NVIDIA ";
  if (!gpu.starts_with(maker) || gpu.find("MIG") != gpu.npos) return std::nullopt;
  gpu.remove_prefix(maker.size());
  for (const Peak& peak : peaks) {
    if (!gpu.starts_with(peak.name)) continue;
    const std::string_view rest = gpu.substr(peak.name.size());
    if (rest.empty() || (peak.parts && (rest[0] == ' ' || rest[0] == '-'))) return peak.tflops;
  }
  return std::nullopt;
}

}  // namespace lockstep::kernels
