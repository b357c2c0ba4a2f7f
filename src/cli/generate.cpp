// lockstep generate: a language model continues texts.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/files.h"
#include "base/text.h"
#include "cli/saved_model.h"
#include "cli/verb.h"
#include "lockstep/comm/agreement.h"
#include "train/infer/generate.h"

namespace lockstep::cli {
namespace {

/// How fast tokens come.
struct Pace {
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin = Clock::now(), first{}, last{};
  std::size_t tokens = 0;

  void note() {
    last = Clock::now();
    if (tokens++ == 0) first = last;
  }
  /// "64 tokens, the first after 0.012 s, then 410 tokens/s"
  std::string text() const {
    const std::chrono::duration<double> start = first - begin, rest = last - first;
    return fmt::format("{}, the first after {:.3f} s{}", pluralized(tokens, "token"), start.count(),
                       rest.count() > 0 ? fmt::format(", then {:.4g} tokens/s",
                                                      static_cast<double>(tokens - 1) / rest.count())
                                        : "");
  }
};

void print_now(const std::string& text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

/// The token that this text names.
std::int64_t stop_token(const data::Tokenizer& tokenizer, const std::string& text) {
  const train::Tokens tokens = tokenizer.encode_prompt(text);
  if (tokens.size() == 1) return tokens.front();
  throw UsageError("--stop {}: is {}, not one token", quote(text), pluralized(tokens.size(), "token"));
}

std::vector<std::string> prompts_of(const po::variables_map& values) {
  std::vector<std::string> prompts;
  if (values.count("prompt")) prompts = values["prompt"].as<Arguments>();
  if (const auto file = option_text(values, "prompts")) {
    std::istringstream lines(read_text(*file));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      prompts.push_back(line);
      if (line.empty())
        throw UsageError("{}:{}: the line is empty; a prompt has a character", *file, prompts.size());
    }
    if (prompts.empty()) throw UsageError("--prompts {}: has no lines", *file);
  }
  if (prompts.empty()) prompts.emplace_back("\n");
  return prompts;
}

/// The tokenizer of the checkpoint.
std::unique_ptr<data::Tokenizer> tokenizer_of(SavedModel& saved, const std::string& file,
                                              const Program& program, Session& session) {
  if (saved.model().context() == 0) throw UsageError("{}: is not a language model", file);
  const data::Tokenizers& tokenizers = program.registries.tokenizers;
  data::StoredTokenizer stored = saved.tokenizer();
  if (stored.name.empty() && saved.model().classes() != 256)
    throw UsageError("{}: does not name its tokenizer, and a model of {} tokens does not read bytes", file,
                     saved.model().classes());
  if (stored.name.empty()) stored.name = "bytes";
  std::unique_ptr<data::Tokenizer> tokenizer = stored.make(tokenizers, file);
  if (tokenizers.configure(stored.name).type->replaces_built_in)
    session.log().info("note: tokenizer = {}: the program's own, not the built-in one", stored.name);
  return tokenizer;
}

}  // namespace

ExitCode generate(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "generate FILE.h5 [--prompt TEXT] [--tokens N] [OPTIONS]",
                    "Continues texts with the language model of a checkpoint. A result depends on the\n"
                    "checkpoint, the prompts and the options only. Ranks share many prompts.");
  SavedModel::add_options(options);
  options.add()("prompt", po::value<Arguments>()->composing(),
                "text to continue (repeatable); default: a new line");
  options.add()("prompts", po::value<std::string>(), "file of texts to continue, one a line");
  options.add()("tokens", po::value<std::int64_t>()->default_value(256), "number of tokens to generate");
  options.add()("temperature", po::value<double>()->default_value(0.8, "0.8"),
                "above 0: randomness of the draws; 0: always take the most likely token");
  options.add()("top-k", po::value<std::int64_t>()->default_value(0),
                "draw among the K most likely tokens; 0: all");
  options.add()("top-p", po::value<double>()->default_value(1, "1"),
                "draw among the likeliest, of this total probability");
  options.add()("stop", po::value<Arguments>()->composing(), "another token that ends a text (repeatable)");
  options.add()("special", "prompts may name special tokens (<|im_start|>)");
  options.add()("seed", po::value<std::uint64_t>()->default_value(1), "seed of the draws");
  options.add()("json", "print one JSON document");
  options.positional("file");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;

  const std::string file = options.required(values, "file", "the checkpoint file is missing");
  SavedModel saved(file, values, program, session);
  const std::unique_ptr<data::Tokenizer> tokenizer = tokenizer_of(saved, file, program, session);
  const std::int64_t vocabulary = tokenizer->vocabulary();
  train::GenerateOptions how{.tokens = values["tokens"].as<std::int64_t>(),
                             .temperature = values["temperature"].as<double>(),
                             .top_k = values["top-k"].as<std::int64_t>(),
                             .top_p = values["top-p"].as<double>(),
                             .vocabulary = vocabulary,
                             .seed = values["seed"].as<std::uint64_t>(),
                             .compute = saved.compute()};
  if (tokenizer->end_of_document() >= 0) how.stop.push_back(tokenizer->end_of_document());
  if (values.count("stop"))
    for (const std::string& text : values["stop"].as<Arguments>())
      how.stop.push_back(stop_token(*tokenizer, text));
  comm::HostGroup& world = session.world();
  std::vector<std::string> prompts;
  comm::run_on_all(world, [&] { prompts = prompts_of(values); });
  std::vector<train::Tokens> tokens;
  for (const std::string& prompt : prompts) {
    tokens.push_back(values.count("special") ? tokenizer->encode_prompt(prompt) : tokenizer->encode(prompt));
    if (tokens.back().empty()) throw UsageError("--prompt: is empty; give at least one character");
  }

  const bool streams = prompts.size() == 1 && !values.count("json");
  nlohmann::json mine = nlohmann::json::object();  // texts by number of the prompt
  comm::run_on_all(world, [&] {
    data::TokenStream stream(*tokenizer);
    Pace pace;
    for (std::size_t first = 0, group = 0; first < prompts.size(); first += train::prompts_at_once, ++group) {
      if (group % static_cast<std::size_t>(world.size()) != static_cast<std::size_t>(world.rank())) continue;
      const std::span<const train::Tokens> some =
          std::span(tokens).subspan(first, std::min(train::prompts_at_once, prompts.size() - first));
      const auto each = [&](std::size_t, std::int64_t token) {
        if (streams && pace.tokens == 0) print_now(prompts.front());
        pace.note();
        if (streams) print_now(stream.add(token));
      };
      const auto found = train::generate(saved.model(), session.backend(), some, first, how, each);
      for (std::size_t i = 0; i < found.size(); ++i)
        mine[std::to_string(first + i)] = tokenizer->decode(found[i]);
      if (streams) print_now((pace.tokens == 0 ? prompts.front() : "") + stream.rest() + "\n");
    }
    if (world.rank() == 0 && pace.tokens > 0) session.log().info("{}", pace.text());
  });
  const std::vector<nlohmann::json> all = comm::all_gather_json(world, mine);
  if (world.rank() != 0 || streams) return ExitCode::done;
  nlohmann::json texts;
  for (const nlohmann::json& of_rank : all) texts.update(of_rank);
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto& text = texts[std::to_string(i)];
    list.push_back({{"prompt", prompts[i]}, {"text", text}, {"step", saved.step()}});
    if (!values.count("json")) fmt::print("{}{}\n\n", prompts[i], text.get<std::string>());
  }
  if (values.count("json")) print_json(prompts.size() == 1 ? list[0] : list);
  return ExitCode::done;
}

}  // namespace lockstep::cli
