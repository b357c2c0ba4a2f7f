// Private to the module: a bound on how long the start of MPI may take, where no watchdog is yet.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace lockstep::train {

/// While one lives, MPI starts. If that takes longer than `timeout_s` (0: forever), and a minute more where
/// all ranks have come as far as this one can see, the process ends with exit code 5, which ends the job, and
/// a rank of each node says which ranks did not come, as far as it can know: those of other nodes it cannot
/// see. Ranks see each other by the names of sockets, which go with their processes.
class StartWatch {
 public:
  explicit StartWatch(double timeout_s);
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

 private:
  void watch(double timeout_s);

  int here_ = -1;  // the socket whose name says that this rank has come
  bool over_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace lockstep::train
