// The configuration's section and its words.
#include "ddp/config.h"

#include <fmt/format.h>

#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/ddp/options.h"

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

std::vector<Option<DdpConfig>> DdpConfig::options() {
  using namespace option;
  using D = DdpConfig;
  const Range size = Range::above(0, 1e6);
  return {
      number("bucket_mb", &D::bucket_mb, size,
             "size at which a gradient bucket closes; they taper at the end",
             {.unit = "MiB",
              .may_change = true,
              .peers = {"bucket_cap_mb", "bucket_size", "reduce_bucket_size"}}),
      number("first_bucket_mb", &D::first_bucket_mb, size, "the same for the first one",
             {.unit = "MiB", .may_change = true}),
      choice("unused", &D::unused, {"error", "allow"}, "parameters that no sample used",
             {.peers = {"find_unused_parameters"}}),
      choice("reduce_dtype", &D::reduce_dtype, {"fp32", "bf16", "fp16"},
             "communication dtype of gradients: between nodes, and between GPUs"),
      flag("sharded_optimizer", &D::sharded_optimizer,
           "each rank updates a partition of the parameters and keeps optimizer state and EMA weights of it "
           "only",
           {.may_change = true, .peers = {"zero", "zero_stage", "use_distributed_optimizer"}}),
      number("check_every", &D::check_every, counts, "between comparisons of all ranks' parameters; 0: never",
             {.unit = "steps", .may_change = true}),
      choice("mode", &D::mode, {"overlapped", "flat", "per_parameter"},
             "when gradients are summed; flat and per_parameter are for comparisons", {.may_change = true}),
  };
}

}  // namespace lockstep::ddp
