#include "kernels/transfer.h"

namespace lockstep::kernels {

Tensor cpu_room_for(const Tensor& tensor) {
  return tensor.device() == Device::cpu() ? tensor : Tensor::empty(tensor.shape(), tensor.dtype());
}

Tensor on_cpu(const Tensor& tensor, Backend* backend) {
  const Tensor here = cpu_room_for(tensor);
  transfer(tensor, here, backend);
  return here;
}

Tensor on_device(const Tensor& tensor, Backend& backend) {
  if (!tensor || tensor.device() == backend.device()) return tensor;
  const Tensor there = backend.empty(tensor.shape(), tensor.dtype(), tensor.channel_block());
  backend.copy(tensor, there);
  return there;
}

void transfer(const Tensor& from, const Tensor& to, Backend* backend) {
  if (from.shares_memory_with(to)) return;
  if (from.device() == Device::cpu() && to.device() == Device::cpu()) return copy_elements(from, to);
  const Device device = from.device() == Device::cpu() ? to.device() : from.device();
  if (!backend)
    throw UsageError("a tensor lies on {}, and nobody here can copy it: give the backend of that device",
                     to_string(device));
  backend->copy(from, to);
}

}  // namespace lockstep::kernels
