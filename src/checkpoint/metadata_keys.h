// Private to the room: what of .safetensors metadata is ours.
#pragma once

#include <array>
#include <cstdint>

#include "lockstep/checkpoint/contents.h"

namespace lockstep::checkpoint {

inline constexpr const char* config_key = "lockstep.config";

struct PositionKey {
  const char* name;
  std::int64_t Position::*value;
};
inline constexpr std::array<PositionKey, 4> position_keys{{{"lockstep.step", &Position::step},
                                                           {"lockstep.epoch", &Position::epoch},
                                                           {"lockstep.samples", &Position::samples},
                                                           {"lockstep.shards", &Position::shards}}};
inline constexpr const char* seed_key = "lockstep.seed";

}  // namespace lockstep::checkpoint
