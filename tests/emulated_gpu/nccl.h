// What a test has the emulated NCCL do, and what it has seen.
#pragma once

#include <atomic>
#include <string>

namespace lockstep::emulated_gpu {

struct Nccl {
  bool start_breaks = false;        ///< on this rank: its peers are not told, and wait
  bool register_breaks = false;     ///< on this rank
  bool memory_breaks = false;       ///< on this rank: there is none of NCCL's
  std::atomic<bool> silent{false};  ///< whoever asks for errors gets no answer, until this is false again
  std::atomic<int> asked{0};        ///< while silent
  std::atomic<int> aborted{0};      ///< communicators
  int memories = 0;                 ///< allocated and not released
  bool noting = false;
  std::string noted;  ///< while noting: names of calls, and a | behind each group
};
Nccl& nccl();

}  // namespace lockstep::emulated_gpu
