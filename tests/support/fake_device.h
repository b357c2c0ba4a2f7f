// A GPU for machines without one: a device whose memory no program can touch.
//
// Its operations are the CPU's, with the same bits, but its memory can be read and written only while one of
// them runs: whoever takes a pointer into it for one of CPU memory ends with a segmentation fault. Tensors of
// the CPU are refused by every operation but copy(), as a GPU's backend does.
#pragma once

#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::test {

std::unique_ptr<kernels::Backend> make_fake_device();
/// Which carries its operations out: one that a test enters here can be run on the fake device, too.
kernels::Backend& cpu_of(kernels::Backend& fake_device);
/// How often it was read so far: each time, a program would have waited for a GPU.
int reads_of(const kernels::Backend& fake_device);

/// A transport over the ranks of `host` whose flat buffers are on the device, as NCCL's do: sums go by way of
/// the host's flat buffers. `device` is a fake one. Both must outlive it.
std::unique_ptr<comm::GradientTransport> make_fake_transport(comm::CpuCommunicator& host,
                                                             kernels::Backend& device);

}  // namespace lockstep::test
