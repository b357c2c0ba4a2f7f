#include "ddp/model_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::ddp {
namespace {

using Json = nlohmann::json;

/// What must be equal on all ranks: for each kind of thing, one entry [name, value of each trait] a thing.
struct Kind {
  const char* singular;
  const char* plural;
  std::vector<const char*> traits;  ///< how the values after the name are called in an error
};

const std::array kinds{
    Kind{"option", "options", {"value "}},
    Kind{"parameter", "parameters", {"shape ", "element type ", "state ", "ownership "}},
    Kind{"buffer", "buffers", {"shape ", "element type "}},
    Kind{"statistic", "statistics", {"size "}},
};

Json describe(const ModelState& model, const Options& options) {
  Json text = Json::array({Json::array(), Json::array(), Json::array(), Json::array()});
  const auto option = [&](const char* name, const std::string& value) { text[0].push_back({name, value}); };
  option("shards", fmt::format("{}", options.shards));
  option("micro_batches", fmt::format("{}", options.micro_batches));
  option("bucket_mb", fmt::format("{}", options.bucket_mb));
  option("first_bucket_mb", fmt::format("{}", options.first_bucket_mb));
  option("unused", std::string(to_string(options.unused)));
  option("mode", std::string(to_string(options.mode)));
  option("wire", std::string(to_string(options.wire)));
  option("hook", options.hook ? options.hook->describe() : "none");
  option("sharded_optimizer", options.sharded_optimizer ? "on" : "off");
  option("check_every", fmt::format("{}", options.check_every));
  option("seed", fmt::format("{}", options.seed));
  option("compute", std::string(to_string(options.compute)));
  option("layer_communicator", options.layer_communicator ? "on" : "off");
  option("graph", std::string(to_string(options.graph)));
  option("allow_non_finite_loss", options.allow_non_finite_loss ? "on" : "off");
  for (const Param* const param : model.params)
    text[1].push_back({param->name, to_string(param->value.shape()), to_string(param->value.dtype()),
                       param->trainable ? "trainable" : "frozen",
                       param->undivided ? "undivided" : "divided"});
  for (const Buffer* const buffer : model.buffers)
    text[2].push_back({buffer->name, to_string(buffer->value.shape()), to_string(buffer->value.dtype())});
  for (const Statistic* const statistic : model.statistics)
    text[3].push_back({statistic->name(), fmt::format("{}", statistic->elements())});
  return text;
}

/// How two lists of one kind differ first: "parameter 3 is named a on rank 0 but b"; empty if they do not.
std::string first_difference(const Kind& kind, const Json& here, const Json& there) {
  for (std::size_t i = 0; i < std::max(here.size(), there.size()); ++i) {
    if (i >= there.size())
      return fmt::format("{} {} is {} on rank 0 but missing", kind.singular, i,
                         here[i][0].get<std::string>());
    if (i >= here.size())
      return fmt::format("{} {} is missing on rank 0 but {}", kind.singular, i,
                         there[i][0].get<std::string>());
    if (here[i][0] != there[i][0])
      return fmt::format("{} {} is named {} on rank 0 but {}", kind.singular, i,
                         here[i][0].get<std::string>(), there[i][0].get<std::string>());
    for (std::size_t t = 0; t < kind.traits.size(); ++t) {
      if (here[i][t + 1] != there[i][t + 1])
        return fmt::format("{} {} has {}{} on rank 0 but {}", kind.singular, here[i][0].get<std::string>(),
                           kind.traits[t], here[i][t + 1].get<std::string>(),
                           there[i][t + 1].get<std::string>());
    }
  }
  return {};
}

std::string difference(const Json& here, const Json& there) {
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const std::string first = first_difference(kinds[k], here[k], there[k]);
    if (first.empty()) continue;
    if (here[k].size() == there[k].size()) return first;
    return fmt::format("{} {} on rank 0 but {}; the first difference: {}", here[k].size(), kinds[k].plural,
                       there[k].size(), first);
  }
  return {};
}

[[noreturn]] void throw_difference(const std::vector<std::string>& texts) {
  const Json reference = Json::parse(texts[0]);
  std::string first;
  std::vector<int> ranks;
  for (int rank = 1; rank < static_cast<int>(texts.size()); ++rank) {
    const std::string found = difference(reference, Json::parse(texts[static_cast<std::size_t>(rank)]));
    if (first.empty()) first = found;
    if (!found.empty() && found == first) ranks.push_back(rank);
  }
  throw UsageError("the ranks do not hold the same model: {} on {}; every rank must build it alike", first,
                   ranks_text(ranks));
}

}  // namespace

std::string ranks_text(std::span<const int> ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

void check_same_model(comm::Communicator& communicator, const ModelState& model, const Options& options) {
  const std::string mine =
      describe(model, options).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const XXH64_hash_t hash = XXH3_64bits(mine.data(), mine.size());
  std::vector<XXH64_hash_t> hashes(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(&hash, sizeof hash, hashes.data());
  if (std::all_of(hashes.begin(), hashes.end(), [&](XXH64_hash_t other) { return other == hashes[0]; }))
    return;
  throw_difference(communicator.all_gather_texts(mine));
}

}  // namespace lockstep::ddp
