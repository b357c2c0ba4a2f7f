// The configuration's words for choices.
#include "lockstep/ddp/options.h"

#include <fmt/format.h>

#include <string>

#include "lockstep/base/error.h"

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

}  // namespace lockstep::ddp
