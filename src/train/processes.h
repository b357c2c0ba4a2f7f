// What /proc reports of other processes of this node.
#pragma once

#include <sys/types.h>

#include <string>

namespace lockstep::train {

struct ProcessState {
  char letter = 0;      ///< R, S, D, T (stopped), Z (ended, not collected) ...; 0: no such process
  bool traced = false;  ///< by a debugger
  bool gone() const { return letter == 0 || letter == 'Z' || letter == 'X'; }
};

/// These two do not allocate.
ProcessState state_of(pid_t pid);
const char* describe(ProcessState state);

pid_t parent_of(pid_t pid);  ///< 0: unknown
/// The name of the program; empty if unknown.
std::string name_of(pid_t pid);

}  // namespace lockstep::train
