#include "ddp/checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/ops/update.h"

namespace lockstep::ddp {

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
  if (swapped_in(model))
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

/// Everything that must be equal on all ranks, a line each.
std::string describe(const ModelState& model, const Options& options) {
  std::string text;
  const auto line = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
    text += '\n';
  };
  for (const Option<Options>& row : Options::options())
    if (row.name != "shards_at_once") line("option {} {}", row.name, row.get(options));
  line("option shards {}", options.shards);
  line("option micro_batches {}", options.micro_batches);
  line("option hook {}", options.hook ? options.hook->describe() : "none");
  line("option seed {}", options.seed);
  line("option compute {}", to_string(options.compute));
  line("option graph {}", option::word(options.graph));
  line("option allow_non_finite_loss {}", options.allow_non_finite_loss);
  line("layers that meet across ranks: {}", model.meets_across_ranks);
  for (const Param* const param : model.params)
    line("parameter {} {} {}{}{}", param->name, to_string(param->value.shape()),
         to_string(param->value.dtype()), param->trainable ? "" : ", frozen",
         param->undivided ? ", undivided" : "");
  for (const Buffer* const buffer : model.buffers)
    line("buffer {} {} {}", buffer->name, to_string(buffer->value.shape()), to_string(buffer->value.dtype()));
  for (const Statistic* const statistic : model.statistics)
    line("statistic {} {}", statistic->name(), statistic->elements());
  for (const auto& [name, tensor] : values_of_states(model))
    line("tensor of EMA or optimizer {} {} {}", name, to_string(tensor.shape()), to_string(tensor.dtype()));
  return text;
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

void check_same_model(comm::HostGroup& group, const ModelState& model, const Options& options) {
  if (const auto differing = comm::first_difference(group, describe(model, options)))
    throw UsageError("the ranks do not hold the same model: {}; every rank must build it alike",
                     differing->text());
}

namespace {

using Digest = std::uint64_t;

/// [rank][item]
std::vector<Digest> gather(comm::HostGroup& group, const std::vector<Digest>& mine) {
  std::vector<Digest> all(mine.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(mine.data(), mine.size() * sizeof(Digest), all.data());
  return all;
}

/// The ranks whose digest of `item` differs from that of most ranks, or from rank 0's if no value has a
/// majority.
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
    return fmt::format("the list of tensors (do only some ranks have an Ema or an optimizer?) on {}",
                       comm::ranks_text(apart));
  if (ranks_apart(of_all, 2, 1).empty()) return {};

  const std::vector<Digest> all = gather(group, of_each);
  std::vector<std::string> differing;
  for (std::size_t item = 0; item < values.size(); ++item) {
    if (const std::vector<int> apart = ranks_apart(all, values.size(), item); !apart.empty())
      differing.push_back(fmt::format("{} on {}", values[item].name, comm::ranks_text(apart)));
  }
  constexpr std::size_t max_tensors_named = 4;
  return list_of(differing, max_tensors_named, "; ");
}

namespace {

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
  constexpr std::size_t max_parameters_named = 8;
  std::vector<std::string> texts;
  for (const std::size_t param : missed) {
    std::vector<int> shards, ranks;
    for (int shard = 0; shard < map.shards(); ++shard) {
      const std::span row =
          std::span(rows).subspan(static_cast<std::size_t>(shard) * usage.words(), usage.words());
      if (Usage::test(row, param)) continue;
      shards.push_back(shard);
      const int owner = map.owner(shard);
      if (ranks.empty() || ranks.back() != owner) ranks.push_back(owner);
    }
    const bool all = static_cast<int>(shards.size()) == map.shards();
    texts.push_back(params[param]->name +
                    (all ? " in no shard"
                         : fmt::format(" not in shard{} {} ({})", shards.size() == 1 ? "" : "s",
                                       fmt::join(shards, ", "), comm::ranks_text(ranks))));
  }
  throw UsageError(
      "parameters without a gradient: {}; use them in every shard, freeze them, or set ddp.unused "
      "= allow",
      list_of(texts, max_parameters_named, "; "));
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

void check_loss(const StepHeader& header, std::uint64_t step, const Options& options) {
  const ops::CountedSum loss = header.loss();
  const double mean = loss.sum / loss.count;
  if (std::isfinite(mean) || loss.count == 0 || options.allow_non_finite_loss) return;
  const std::optional<comm::ShardRange> shards = header.shards_not_finite();
  const auto name = [](const comm::ShardRange& range) {
    return range.count == 1 ? fmt::format("shard {}", range.first)
                            : fmt::format("shards {} to {}", range.first, range.end() - 1);
  };
  throw TrainingError("step {}: the loss is {}; {}", step + 1, std::isnan(mean) ? "nan" : "infinite",
                      shards
                          ? fmt::format("it is finite but for {}: look at its samples first", name(*shards))
                          : "lower optimizer.lr, set optimizer.clip, or look at the data");
}

}  // namespace lockstep::ddp
