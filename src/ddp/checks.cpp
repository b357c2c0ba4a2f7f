#include "ddp/checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "lockstep/base/error.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/ops/update.h"

namespace lockstep::ddp {
namespace {

template <class Value>
struct Word {
  std::string_view word;
  Value value;
};

constexpr Word<Unused> unused_words[] = {{"error", Unused::error}, {"allow", Unused::allow}};
constexpr Word<Mode> mode_words[] = {
    {"overlapped", Mode::overlapped}, {"flat", Mode::flat}, {"per_parameter", Mode::per_parameter}};
constexpr Word<Graph> graph_words[] = {
    {"auto", Graph::automatic}, {"true", Graph::always}, {"false", Graph::never}};

template <class Value, std::size_t count>
Value value_named(std::string_view key, std::string_view word, const Word<Value> (&known)[count]) {
  std::string words;
  for (const auto& [name, value] : known) {
    if (name == word) return value;
    words += fmt::format("{}{}", words.empty() ? "" : ", ", name);
  }
  throw UsageError("{} = {} is not known; one of {}", key, word, words);
}

template <class Value, std::size_t count>
std::string_view word_of(Value wanted, const Word<Value> (&known)[count]) {
  for (const auto& [name, value] : known) {
    if (value == wanted) return name;
  }
  return "?";
}

}  // namespace

Unused unused_named(std::string_view word) { return value_named("ddp.unused", word, unused_words); }
Mode mode_named(std::string_view word) { return value_named("ddp.mode", word, mode_words); }
Graph graph_named(std::string_view word) { return value_named("train.cuda_graph", word, graph_words); }
std::string_view to_string(Unused unused) { return word_of(unused, unused_words); }
std::string_view to_string(Mode mode) { return word_of(mode, mode_words); }
std::string_view to_string(Graph graph) { return word_of(graph, graph_words); }

void check_options(const Options& options, int ranks) {
  if (options.comm_dtype != DType::float32 && options.comm_dtype != DType::bfloat16 &&
      options.comm_dtype != DType::float16)
    throw UsageError("gradients cannot be sent as {}; use float32, bfloat16 or float16",
                     to_string(options.comm_dtype));
  if (!(options.bucket_mb > 0) || !(options.first_bucket_mb > 0))
    throw UsageError("ddp.bucket_mb = {} and ddp.first_bucket_mb = {} must be above 0", options.bucket_mb,
                     options.first_bucket_mb);
  if (options.micro_batches < 1)
    throw UsageError("train.micro_batches = {} must be at least 1", options.micro_batches);
  if (options.check_every < 0)
    throw UsageError("ddp.check_every = {} must not be negative", options.check_every);
  if (options.shards < 0) throw UsageError("train.shards = {} must not be negative", options.shards);
  if (options.shards != 0 && options.shards < ranks)
    throw UsageError("{} ranks but only {} shards: start at most {} ranks, or start a run with more shards",
                     ranks, options.shards, options.shards);
}

std::vector<Param*> trainable_params(const std::vector<Param*>& params) {
  std::vector<Param*> trainable;
  std::set<std::string> names;
  for (Param* const param : params) {
    if (!names.insert(param->name).second) throw UsageError("two parameters are named {}", param->name);
    if (param->value.dtype() != DType::float32)
      throw UsageError("parameter {} is {}; parameters are float32", param->name,
                       to_string(param->value.dtype()));
    if (param->trainable) trainable.push_back(param);
  }
  if (trainable.empty())
    throw UsageError("the model has no trainable parameter, so there is nothing to train in parallel");
  return trainable;
}

ModelState without_repeats(ModelState model) {
  std::set<const Param*> seen;
  std::erase_if(model.params, [&](const Param* param) { return !seen.insert(param).second; });
  return model;
}

void check_device(const std::string& name, const Tensor& value, const kernels::Backend& backend) {
  if (value.device() == backend.device()) return;
  throw UsageError("{} is on {}, but gradients are computed on {}; move the model there first: model.to()",
                   name, to_string(value.device()), to_string(backend.device()));
}

void check_own_weights(const ModelState& model) {
  for (const Param* const param : model.params)
    if (param->swapped_in)
      throw UsageError("EMA weights are swapped in, and not to be trained; end the evaluation first");
}

void broadcast_values(comm::HostGroup& group, const ModelState& model, kernels::Backend& backend) {
  if (group.size() == 1) return;
  for (const ParamState::Entry& value : replicated_values(model)) {
    const Tensor here = kernels::on_cpu(value.tensor, &backend);
    group.broadcast(here.raw(), here.bytes(), 0);
    kernels::transfer(here, value.tensor, &backend);
  }
}

namespace {

std::vector<ParamState::Entry> values_of_states(const ModelState& model) {
  std::vector<ParamState::Entry> values;
  std::set<const ParamState*> seen;
  for (const Param* const param : model.params) {
    for (const std::weak_ptr<const ParamState>& known : param->states) {
      const std::shared_ptr<const ParamState> state = known.lock();
      if (state && seen.insert(state.get()).second)
        std::ranges::move(state->replicated(), std::back_inserter(values));
    }
  }
  return values;
}

using Json = nlohmann::json;

/// What must be equal on all ranks: for each kind, entries [name, value of each trait].
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
    Kind{"tensor of EMA or optimizer", "tensors of EMA and optimizer", {"shape ", "element type "}},
};

Json describe(const ModelState& model, const Options& options) {
  Json text(kinds.size(), Json::array());
  const auto option = [&](const char* name, const std::string& value) { text[0].push_back({name, value}); };
  option("shards", fmt::format("{}", options.shards));
  option("micro_batches", fmt::format("{}", options.micro_batches));
  option("bucket_mb", fmt::format("{}", options.bucket_mb));
  option("first_bucket_mb", fmt::format("{}", options.first_bucket_mb));
  option("unused", std::string(to_string(options.unused)));
  option("mode", std::string(to_string(options.mode)));
  option("comm_dtype", std::string(to_string(options.comm_dtype)));
  option("hook", options.hook ? options.hook->describe() : "none");
  option("sharded_optimizer", options.sharded_optimizer ? "on" : "off");
  option("check_every", fmt::format("{}", options.check_every));
  option("seed", fmt::format("{}", options.seed));
  option("compute", std::string(to_string(options.compute)));
  option("meets_across_ranks", model.meets_across_ranks ? "on" : "off");
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
  for (const auto& [name, tensor] : values_of_states(model))
    text[4].push_back({name, to_string(tensor.shape()), to_string(tensor.dtype())});
  return text;
}

/// The first difference of two lists of one kind: "parameter 3 is named a on rank 0 but b"; empty if they do
/// not.
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

std::vector<ParamState::Entry> replicated_values(const ModelState& model) {
  std::vector<ParamState::Entry> values;
  for (const Param* const param : model.params) {
    param->wait_ready();
    values.push_back({param->name, param->value});
  }
  for (const Buffer* const buffer : model.buffers) values.push_back({buffer->name, buffer->value});
  std::ranges::move(values_of_states(model), std::back_inserter(values));
  return values;
}

std::string ranks_text(std::span<const int> ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

void check_same_model(comm::HostGroup& group, const ModelState& model, const Options& options) {
  const std::string mine = json_text(describe(model, options));
  const XXH64_hash_t hash = XXH3_64bits(mine.data(), mine.size());
  std::vector<XXH64_hash_t> hashes(static_cast<std::size_t>(group.size()));
  group.all_gather(&hash, sizeof hash, hashes.data());
  if (std::all_of(hashes.begin(), hashes.end(), [&](XXH64_hash_t other) { return other == hashes[0]; }))
    return;
  throw_difference(group.all_gather_texts(mine));
}

namespace {

constexpr std::size_t most_tensors_named = 4;

using Digest = std::uint64_t;

/// [rank][item]
std::vector<Digest> gather(comm::HostGroup& group, const std::vector<Digest>& mine) {
  std::vector<Digest> all(mine.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(mine.data(), mine.size() * sizeof(Digest), all.data());
  return all;
}

/// The ranks whose digest of `item` is not that of most ranks; of rank 0 if no value has a majority.
std::vector<int> ranks_apart(const std::vector<Digest>& all, std::size_t items, std::size_t item) {
  const std::size_t ranks = all.size() / items;
  const auto of = [&](std::size_t rank) { return all[rank * items + item]; };
  Digest usual = of(0);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::size_t equal = 0;
    for (std::size_t other = 0; other < ranks; ++other) equal += of(other) == of(rank);
    if (2 * equal > ranks) usual = of(rank);
  }
  std::vector<int> apart;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (of(rank) != usual) apart.push_back(static_cast<int>(rank));
  }
  return apart;
}

}  // namespace

std::string differing_values(comm::HostGroup& group, std::span<const ParamState::Entry> values,
                             kernels::Backend* backend) {
  if (group.size() == 1) return {};
  std::vector<Digest> of_each;
  std::string names;
  for (const ParamState::Entry& value : values) {
    names += value.name + "\n";
    const Tensor here = kernels::on_cpu(value.tensor, backend);
    of_each.push_back(XXH3_64bits(here.raw(), here.bytes()));
  }
  const std::vector<Digest> of_all =
      gather(group, {XXH3_64bits(names.data(), names.size()),
                     XXH3_64bits(of_each.data(), of_each.size() * sizeof(Digest))});
  if (const std::vector<int> apart = ranks_apart(of_all, 2, 0); !apart.empty())
    return fmt::format("the list of tensors (is an Ema or an optimizer on some ranks only?) on {}",
                       ranks_text(apart));
  if (ranks_apart(of_all, 2, 1).empty()) return {};

  const std::vector<Digest> all = gather(group, of_each);
  std::string text;
  std::size_t differing = 0;
  for (std::size_t item = 0; item < values.size(); ++item) {
    const std::vector<int> apart = ranks_apart(all, values.size(), item);
    if (apart.empty()) continue;
    if (++differing > most_tensors_named) continue;
    text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", values[item].name, ranks_text(apart));
  }
  if (differing > most_tensors_named)
    text += fmt::format("; and {} more tensors", differing - most_tensors_named);
  return text;
}

namespace {

constexpr std::size_t most_parameters_named = 8;

/// The usage rows of all shards, in the order of the shards.
std::vector<Usage::Word> rows_of_all(comm::HostGroup& group, const comm::ShardMap& map, const Usage& usage) {
  std::string mine;
  for (int shard = 0; shard < map.block(group.rank()).count; ++shard) {
    const auto row = std::as_bytes(usage.row(shard));
    mine.append(reinterpret_cast<const char*>(row.data()), row.size());
  }
  std::vector<Usage::Word> rows;
  for (const std::string& text : group.all_gather_texts(mine)) {
    const std::size_t old = rows.size();
    rows.resize(old + text.size() / sizeof(Usage::Word));
    std::memcpy(rows.data() + old, text.data(), text.size());
  }
  return rows;
}

}  // namespace

void throw_unused(comm::HostGroup& group, const comm::ShardMap& map, std::span<Param* const> params,
                  const std::vector<std::size_t>& missed, const Usage& usage) {
  const std::vector<Usage::Word> rows = rows_of_all(group, map, usage);
  std::string text;
  for (std::size_t i = 0; i < std::min(missed.size(), most_parameters_named); ++i) {
    std::vector<int> shards, ranks;
    for (int shard = 0; shard < map.shards(); ++shard) {
      const std::span row =
          std::span(rows).subspan(static_cast<std::size_t>(shard) * usage.words(), usage.words());
      if (Usage::test(row, missed[i])) continue;
      shards.push_back(shard);
      const int owner = map.owner(shard);
      if (ranks.empty() || ranks.back() != owner) ranks.push_back(owner);
    }
    const bool all = static_cast<int>(shards.size()) == map.shards();
    text += i == 0 ? "" : "; ";
    text += params[missed[i]]->name;
    text += all ? " in no shard"
                : fmt::format(" not in shard{} {} ({})", shards.size() == 1 ? "" : "s",
                              fmt::join(shards, ", "), ranks_text(ranks));
  }
  if (missed.size() > most_parameters_named)
    text += fmt::format("; and {} more", missed.size() - most_parameters_named);
  throw UsageError(
      "parameters without a gradient: {}; use them in every shard, freeze them, or set ddp.unused "
      "= allow",
      text);
}

OverflowCheck::OverflowCheck(std::span<Param* const> params, comm::HostGroup& group,
                             kernels::Backend& backend, const Partition* partition)
    : group_(group),
      backend_(backend),
      partition_(partition),
      first_of_rank_(static_cast<std::size_t>(group.size())) {
  constexpr std::int64_t block = Partition::block_elements;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (!params[i]->trainable) continue;
    const std::int64_t elements = partition ? partition->mine(i).count : params[i]->value.numel();
    const std::int64_t blocks = (elements + block - 1) / block;
    ranges_.push_back({.param = i, .first_block = total, .blocks = blocks});
    total += blocks;
  }
  squares_ = backend.empty({total}, DType::float64);
  parts_.reserve(ranges_.size());
  read_.resize(static_cast<std::size_t>(total));
}

kernels::Transfer OverflowCheck::ask(const Reducer& reducer) {
  parts_.clear();
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const auto [param, first, blocks] = ranges_[i];
    const Tensor sum = reducer.sum(static_cast<int>(i));
    parts_.push_back({partition_ ? partition_->part(param, sum) : sum.reshape({sum.numel()}),
                      squares_.rows(first, first + blocks)});
  }
  backend_.run(ops::BlockSumsOfSquares{parts_});
  parts_.clear();
  return {squares_, Tensor::view(read_.data(), squares_.shape(), DType::float64)};
}

void OverflowCheck::check(std::span<Param* const> trainable, std::uint64_t step) {
  const auto found = std::find_if(read_.begin(), read_.end(), [](double sum) { return !std::isfinite(sum); });
  const auto at = static_cast<std::int64_t>(found - read_.begin());
  const auto holds = [at](const Range& range) { return at < range.first_block + range.blocks; };
  std::int64_t first = std::find_if(ranges_.begin(), ranges_.end(), holds) - ranges_.begin();
  if (partition_) {  // ranks have checked different elements
    group_.all_gather(&first, sizeof first, first_of_rank_.data());
    first = *std::min_element(first_of_rank_.begin(), first_of_rank_.end());
  }
  if (first == static_cast<std::int64_t>(ranges_.size())) return;
  throw TrainingError(
      "step {}: the gradient of {} is not finite as float16, which ends at 65504; set "
      "ddp.reduce_dtype = bf16 or fp32",
      step + 1, trainable[static_cast<std::size_t>(first)]->name);
}

}  // namespace lockstep::ddp
