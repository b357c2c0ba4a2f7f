// Private to the module: what the system says of other processes of this machine.
#pragma once

#include <sys/types.h>

#include <string>

namespace lockstep::train {

struct ProcessState {
  char letter = 0;      ///< R, S, D, T (stopped), Z (ended, not collected) ...; 0: there is none
  bool traced = false;  ///< by a debugger
  bool gone() const { return letter == 0 || letter == 'Z' || letter == 'X'; }
};

/// Neither of these two allocates.
ProcessState state_of(pid_t pid);
const char* describe(ProcessState state);

pid_t parent_of(pid_t pid);  ///< 0: not known
/// The name of the program, empty if there is none.
std::string name_of(pid_t pid);

}  // namespace lockstep::train
