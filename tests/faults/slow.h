// A preloaded library that makes a rank slow: each matrix product of rank LOCKSTEP_SLOW_RANK takes some
// milliseconds longer, with the same result. One for each library of products: slow_onednn, slow_openblas.
#pragma once

#include <unistd.h>

#include "base/launcher.h"

inline void delay_on_slow_rank() {
  static const bool slow = [] {
    const int wanted = lockstep::launcher::number({"LOCKSTEP_SLOW_RANK"});
    return wanted >= 0 && lockstep::launcher::rank() == wanted;
  }();
  if (slow) ::usleep(20000);
}
