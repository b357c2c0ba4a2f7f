// Threads beside the main one: no signal is delivered to them.
#pragma once

#include <signal.h>

#include <exception>
#include <string_view>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

/// Starts a thread; signals are for the main thread. FailureError "`who` cannot start its thread: REASON".
template <class Body>
std::thread start_quiet_thread(std::string_view who, Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  try {
    std::thread thread(std::move(body));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (const std::exception& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw FailureError("{} cannot start its thread: {}", who, error.what());
  }
}

}  // namespace lockstep
