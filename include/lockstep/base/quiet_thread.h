// Threads other than the main one: no signal is delivered to them, and they leave the cores that this process
// bound their creator to.
#pragma once

#include <signal.h>

#include <exception>
#include <string_view>
#include <thread>
#include <utility>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"

namespace lockstep {

/// Starts a thread; signals are for the main thread. Where bind_thread() has bound threads of this process
/// it may use all cores that the process was given, else those of its creator. FailureError "`who` cannot
/// start its thread: REASON".
template <class Body>
std::thread start_quiet_thread(std::string_view who, Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  try {
    std::thread thread([body = std::move(body), bound = threads_bound()]() mutable {
      if (bound) bind_thread(given_cores());
      body();
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (const std::exception& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw FailureError("{} cannot start its thread: {}", who, error.what());
  }
}

}  // namespace lockstep
