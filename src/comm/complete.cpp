#include <chrono>
#include <thread>

#include "lockstep/base/whereabouts.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

void complete(Communicator& communicator, Ticket ticket) {
  communicator.wait(ticket);
  if (communicator.done(ticket)) return;
  // A device is at work, which may take as long as a step: the core is left to those who feed it. (Its own
  // blocking wait would not return if a peer died.)
  constexpr std::chrono::microseconds between_looks{20};
  for (whereabouts::Polling polling; !communicator.done(ticket); polling.look())
    std::this_thread::sleep_for(between_looks);
}

}  // namespace lockstep::comm
