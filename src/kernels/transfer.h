// Tensors of a device in CPU memory, and back. On the CPU nothing of this copies anything.
//
// `backend` is the one whose device the tensors are on; none where all of them are on the CPU (UsageError
// naming the device otherwise).
#pragma once

#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

/// CPU memory of the tensor's shape and type: the tensor itself if it is there, otherwise uninitialised.
Tensor cpu_room_for(const Tensor& tensor);
/// The elements in CPU memory, there when this returns: the tensor itself if it is there, otherwise a copy.
Tensor on_cpu(const Tensor& tensor, Backend* backend);
/// The elements on the backend's device: the tensor itself if it is there, otherwise a copy.
Tensor on_device(const Tensor& tensor, Backend& backend);
/// Elements between tensors of equal shape, type and layout, wherever they are; nothing if both are the same
/// memory.
void transfer(const Tensor& from, const Tensor& to, Backend* backend);

}  // namespace lockstep::kernels
