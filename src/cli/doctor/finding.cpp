#include "cli/doctor/finding.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <exception>

namespace lockstep::cli::checkup {

std::string_view word(Verdict verdict) {
  return verdict == Verdict::ok ? "ok" : verdict == Verdict::note ? "note" : "problem";
}

Verdict verdict_of(std::string_view word) {
  return word == "ok" ? Verdict::ok : word == "note" ? Verdict::note : Verdict::problem;
}

std::string place_of(const std::string& run) {
  std::string place = run.empty() ? "." : run;
  for (;;) {
    struct stat info {};
    if (::stat(place.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return place;
    while (place.size() > 1 && place.back() == '/') place.pop_back();
    const std::size_t slash = place.rfind('/');
    if (slash == std::string::npos) return ".";
    place = slash == 0 ? "/" : place.substr(0, slash);
  }
}

std::string in_bytes(std::uint64_t bytes) {
  const auto count = static_cast<double>(bytes);
  return bytes >= 1'000'000'000 ? fmt::format("{:.1f} GB", count * 1e-9)
                                : fmt::format("{:.1f} MB", count * 1e-6);
}

Finding guarded(const std::string& subject, const std::function<Finding()>& probe) {
  try {
    return probe();
  } catch (const std::exception& error) {
    return {subject, Verdict::problem, fmt::format("cannot be looked at: {}", error.what()),
            "look at it by hand"};
  }
}

}  // namespace lockstep::cli::checkup
