// Private to the verb: what another program prints.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::cli::checkup {

/// Standard output and error of a program found along PATH. None if it is not there, fails, or has not ended
/// within timeout_s: then it is killed, with what it started.
std::optional<std::string> output_of(std::vector<std::string> words, double timeout_s);

}  // namespace lockstep::cli::checkup
