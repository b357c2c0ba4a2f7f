#include "checkpoint/config.h"

namespace lockstep::checkpoint {

std::vector<Option<CheckpointConfig>> CheckpointConfig::options() {
  using namespace option;
  using C = CheckpointConfig;
  Range every = counts;
  every.word = "auto";
  every.word_value = C::auto_every;
  return {
      number(
          "every", &C::every, every,
          "between checkpoints; auto: as many as take 10 minutes, found after 20 steps; 0: at the end only",
          {.unit = "steps",
           .may_change = true,
           .peers = {"save_every", "save_interval", "save_steps", "save_freq", "checkpoint_every",
                     "checkpoint_interval"}}),
      number("keep", &C::keep, Range::from(1, 1e6), "newest checkpoints kept",
             {.may_change = true, .peers = {"keep_last", "save_total_limit", "max_to_keep", "save_top_k"}}),
      text("keep_best", &C::keep_best, "metric whose best checkpoint is kept as well", {.may_change = true}),
      flag("async", &C::async, "train on while a checkpoint is written",
           {.may_change = true, .peers = {"async_save"}}),
      choice("load", &C::load, {"strict", "partial"},
             "partial: missing, unexpected and mis-shaped tensors are logged and are no error",
             {.may_change = true, .peers = {"strict"}}),
      flag("narrow", &C::narrow, "round float64 of a file to float32", {.may_change = true}),
  };
}

}  // namespace lockstep::checkpoint
