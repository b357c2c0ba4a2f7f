#include "kernels/gpus.h"

#include <fmt/format.h>

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

}  // namespace lockstep::kernels
