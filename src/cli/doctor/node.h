// doctor --node: whether this machine is fit for a job, quickly and without MPI.
#pragma once

#include "cli/verb.h"

namespace lockstep::cli::checkup {

/// True for "doctor ... --node ...".
bool asks_for_node(const Arguments& words);
/// Runs it with the words after "doctor", as a whole program; its exit code.
int check_node(const Arguments& arguments);

/// Options of doctor, all its forms.
OptionSet options();

}  // namespace lockstep::cli::checkup
