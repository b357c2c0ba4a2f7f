// What a piece of code writes on standard error.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "support/temporary_folder.h"

namespace lockstep::test {

/// What `body` writes on standard error.
inline std::string said_by(const std::function<void()>& body) {
  const TemporaryFolder folder;
  const std::string path = folder.file("log");
  const int own = ::dup(STDERR_FILENO), log = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  BOOST_REQUIRE(own >= 0 && log >= 0);
  ::dup2(log, STDERR_FILENO);
  ::close(log);
  body();
  ::dup2(own, STDERR_FILENO);
  ::close(own);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace lockstep::test
