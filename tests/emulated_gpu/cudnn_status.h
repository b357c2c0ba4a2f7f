// What the parts of the emulated cuDNN share.
#pragma once

#include <cudnn.h>

#include <optional>
#include <string>

#include "emulated_gpu/library_memory.h"

namespace lockstep::emulated_gpu {

/// The one that the handle was last given.
cudaStream_t stream_of(cudnnHandle_t handle);

/// Whether the current device is the handle's, as its calls need it.
cudnnStatus_t check_device(cudnnHandle_t handle);

/// The status, of which cudnnGetLastErrorString() then says this, on the same thread.
cudnnStatus_t refused(cudnnStatus_t status, std::string why);

/// None of a type that is not emulated.
std::optional<Element> element_of(cudnnDataType_t type);

}  // namespace lockstep::emulated_gpu
