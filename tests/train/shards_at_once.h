// Runs whose passes compute several shards have the bits of runs of single shards, for every task.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "train/on_a_device.h"

namespace lockstep::test {

/// A task, by its section [model] and what follows it.
struct AtOnceCase {
  const char* name;
  std::string model, more;
};

inline std::vector<AtOnceCase> at_once_cases() {
  const std::string unet =
      "name = unet\nimage_size = 4\nin_channels = 1\nmodel_channels = 32\nnum_res_blocks = 1\n"
      "channel_mult = 1 1\nattention_resolutions = 2\nnum_heads = 2\nnum_classes = 5\ndropout = "
      "0.3\nout_channels = 1\n"
      "[diffusion]\nschedule = cosine\n";
  return {{"mlp", mlp, ""},
          {"resnet", resnet, ""},
          {"resnet of volumes", resnet + "dims = 3\n", ""},
          {"gpt with dropout", gpt, ""},
          {"gpt, recomputed", gpt + "recompute = true\n", ""},
          {"vit",
           "name = vit\nimage_size = 8\npatch = 4\nlayers = 1\nheads = 2\nchannels = 16\nmlp_channels = 32\n"
           "in_channels = 3\nclasses = 5\n",
           ""},
          {"encoder",
           "name = encoder\nfeatures = 3\noutputs = 5\ncontext = 7\nlayers = 2\nheads = 2\nchannels = 16\n"
           "mlp_channels = 32\ndropout = 0.2\n",
           ""},
          {"gru", "name = rnn\nfeatures = 3\noutputs = 5\nlayers = 2\nhidden = 8\ndropout = 0.2\n", ""},
          {"lstm", "name = rnn\ncell = lstm\nfeatures = 3\noutputs = 5\nhidden = 8\npooling = mean\n", ""},
          {"diffusion", unet + "steps = 9\nclass_dropout = 0.4\n", ""},
          {"diffusion by losses", unet + "steps = 2\ntime = loss_second_moment\n", ""}};
}

/// make_place() -> Place. Steps of so many shards a rank, of which the first of `numbers` are one pass, and
/// so on.
template <class MakePlace>
void check_at_once(const MakePlace& make_place, const AtOnceCase& what, const char* precision,
                   const std::vector<int>& numbers, ddp::Graph graph = ddp::Graph::never, int shards = 8) {
  const std::int64_t steps = graph == ddp::Graph::never ? 3 : 6;
  train::Config config = device_config(what.model, what.more);
  config.train.precision = precision;
  config.ddp.shards = shards * world().size();
  config.train.global_batch = 2 * config.ddp.shards;
  config.ddp.shards_at_once = 1;
  Place place = make_place();
  DeviceRun wanted(config, place);
  wanted.run_to(steps);
  const auto values = wanted.values();
  config.ddp.graph = graph;
  for (const int at_once : numbers) {
    BOOST_TEST_CONTEXT(what.name << " " << precision << ", " << at_once << " at once") {
      config.ddp.shards_at_once = at_once;
      DeviceRun found(config, place);
      found.run_to(steps);
      BOOST_TEST(found.replicas().shards_at_once().refused == "");
      BOOST_TEST(found.replicas().shards_at_once().shards == at_once);
      if (graph != ddp::Graph::never) BOOST_TEST(found.replicas().captured_steps().refused == "");
      BOOST_TEST(found.losses() == wanted.losses(), boost::test_tools::per_element());
      const auto others = found.values();
      BOOST_REQUIRE(others.size() == values.size());
      for (std::size_t i = 0; i < values.size(); ++i)
        BOOST_TEST(std::memcmp(others[i].second.raw(), values[i].second.raw(), values[i].second.bytes()) == 0,
                   values[i].first);
    }
  }
}

}  // namespace lockstep::test
