#include "lockstep/checkpoint/gpt2_config.h"

#include <array>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "lockstep/base/error.h"
#include "lockstep/base/names.h"

namespace lockstep::checkpoint {

void check_gpt2_config(const std::string& weights, const Gpt2Sizes& sizes) {
  const std::string path = directory_of(weights) + "/config.json";
  if (!weights.ends_with(".safetensors") || !exists(path)) return;
  const nlohmann::json config = nlohmann::json::parse(read_text(path), nullptr, false);
  if (!config.is_object())
    throw UsageError("{}: is no JSON object, as config.json beside {} is", path, file_name_of(weights));
  const auto refuse = [&](std::string_view key, const nlohmann::json& there, const std::string& here) {
    constexpr auto replace = nlohmann::json::error_handler_t::replace;
    throw UsageError(
        "{}: {} is {}, but {}: the weights beside it are of another model", path, key,
        in_quotes(there.is_string() ? there.get<std::string>() : there.dump(-1, ' ', false, replace)), here);
  };
  if (const auto type = config.find("model_type"); type != config.end() && *type != "gpt2")
    refuse("model_type", *type, "a gpt takes gpt2");
  struct Key {
    const char* name;
    const char* ours;
    std::int64_t value;
  };
  const std::array<Key, 5> keys{{{"n_head", "model.heads", sizes.heads},
                                 {"n_layer", "model.layers", sizes.layers},
                                 {"n_embd", "model.channels", sizes.channels},
                                 {"n_positions", "model.context", sizes.context},
                                 {"vocab_size", "model.vocab", sizes.vocab}}};
  for (const Key& key : keys) {
    const auto found = config.find(key.name);
    if (found != config.end() && *found != key.value)
      refuse(key.name, *found, fmt::format("{} is {}", key.ours, key.value));
  }
}

}  // namespace lockstep::checkpoint
