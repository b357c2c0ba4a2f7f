#include "lockstep/ddp/hooks.h"

#include <fmt/format.h>

#include <charconv>
#include <functional>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/ddp/power_sgd.h"

namespace lockstep::ddp {
namespace {

template <class Number>
bool read(const std::string& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

bool read(const std::string& text, bool& choice) {
  choice = text == "true";
  return choice || text == "false";
}

/// One option of PowerSGD in `ddp.hook`.
struct HookOption {
  const char* name;
  const char* kind;
  std::function<bool(PowerSgdOptions&, const std::string&)> set;
  std::function<std::string(const PowerSgdOptions&)> get;
};

template <class Value>
HookOption hook_option(const char* name, const char* kind, Value PowerSgdOptions::*member) {
  return {name, kind,
          [member](PowerSgdOptions& options, const std::string& text) { return read(text, options.*member); },
          [member](const PowerSgdOptions& options) { return fmt::format("{}", options.*member); }};
}

std::vector<HookOption> hook_options() {
  return {hook_option("rank", "a whole number", &PowerSgdOptions::rank),
          hook_option("start_step", "a whole number", &PowerSgdOptions::start_step),
          hook_option("min_compression", "a number", &PowerSgdOptions::min_compression),
          hook_option("error_feedback", "true or false", &PowerSgdOptions::error_feedback),
          hook_option("warm_start", "true or false", &PowerSgdOptions::warm_start)};
}

/// The name of the option that `text` sets.
std::string set(PowerSgdOptions& options, const std::string& text) {
  const std::size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
  std::string known;
  for (const HookOption& option : hook_options()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", option.name);
    if (name != option.name) continue;
    if (option.set(options, value)) return name;
    throw UsageError("ddp.hook: powersgd: '{}' is not {}=VALUE with {}", text, name, option.kind);
  }
  throw UsageError("ddp.hook: powersgd has no option {}; it has {}", name, known);
}

/// None: no hook.
std::optional<PowerSgdOptions> options_in(std::string_view text) {
  std::istringstream rest{std::string(text)};
  std::string name, option;
  rest >> name;
  if (name == "none") {
    if (rest >> option) throw UsageError("ddp.hook: none takes no option, but there is '{}'", option);
    return std::nullopt;
  }
  if (name != "powersgd") {
    throw UsageError("ddp.hook = {} is not known; one of none, powersgd{}", text,
                     name.starts_with("powersgd") ? " (options after spaces: powersgd rank=2)" : "");
  }
  PowerSgdOptions options;
  std::set<std::string> given;
  while (rest >> option) {
    const std::string which = set(options, option);
    if (!given.insert(which).second) throw UsageError("ddp.hook: powersgd: {} is given twice", which);
  }
  return options;
}

}  // namespace

std::shared_ptr<Hook> hook_named(std::string_view text, std::uint64_t seed) {
  std::optional<PowerSgdOptions> options = options_in(text);
  if (!options) return nullptr;
  options->seed = seed;
  try {
    return std::make_shared<PowerSgd>(*options);
  } catch (const UsageError& error) {
    throw UsageError("ddp.hook: {}", error.what());
  }
}

std::string hook_text(std::string_view text) {
  const std::optional<PowerSgdOptions> options = options_in(text);
  if (!options) return "none";
  std::string resolved = "powersgd";
  for (const HookOption& option : hook_options())
    resolved += fmt::format(" {}={}", option.name, option.get(*options));
  return resolved;
}

}  // namespace lockstep::ddp
