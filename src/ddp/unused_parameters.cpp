#include "ddp/unused_parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "ddp/model_agreement.h"
#include "lockstep/base/error.h"

namespace lockstep::ddp {
namespace {

constexpr std::size_t most_parameters_named = 8;

/// The usage rows of all shards, in the order of the shards.
std::vector<Usage::Word> rows_of_all(comm::Communicator& communicator, const comm::ShardMap& map,
                                     const Usage& usage) {
  std::string mine;
  for (int turn = 0; turn < map.block(communicator.rank()).count; ++turn) {
    const auto row = std::as_bytes(usage.row(turn));
    mine.append(reinterpret_cast<const char*>(row.data()), row.size());
  }
  std::vector<Usage::Word> rows;
  for (const std::string& text : communicator.all_gather_texts(mine)) {
    const std::size_t old = rows.size();
    rows.resize(old + text.size() / sizeof(Usage::Word));
    std::memcpy(rows.data() + old, text.data(), text.size());
  }
  return rows;
}

}  // namespace

void throw_unused(comm::Communicator& communicator, const comm::ShardMap& map, std::span<Param* const> params,
                  const std::vector<std::size_t>& missed, const Usage& usage) {
  const std::vector<Usage::Word> rows = rows_of_all(communicator, map, usage);
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

}  // namespace lockstep::ddp
