// Which backend serves a device.
#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

std::unique_ptr<Backend> make_backend(Device device, int threads) {
  return device.kind == Device::Kind::cpu ? make_cpu_backend(threads) : make_cuda_backend(device.index);
}

}  // namespace lockstep::kernels
