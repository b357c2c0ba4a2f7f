// The hooks that a configuration can name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/ddp/hook.h"

namespace lockstep::ddp {

/// The value of ddp.hook: "none" (no hook), or "powersgd" and any of its options with their values:
/// "powersgd rank=4 start_step=1000 min_compression=2 error_feedback=true warm_start=true". Throws UsageError
/// for words and values that are not known, naming those that are, and for an option given twice.
std::shared_ptr<Hook> hook_named(std::string_view text, std::uint64_t seed);

/// The same value with every option spelled out, in one order: equal texts are equal hooks. Throws as
/// hook_named, but does not judge the values.
std::string hook_text(std::string_view text);

}  // namespace lockstep::ddp
