// lockstep generate: a language model continues a text.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/saved_model.h"
#include "cli/verb.h"
#include "train/infer/generate.h"

namespace lockstep::cli {

ExitCode generate(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "generate FILE.h5 [--prompt TEXT] [--tokens N] [OPTIONS]",
                    "Continues a text with the language model of a checkpoint. The result depends on\n"
                    "the checkpoint, the prompt, the temperature and the seed only.");
  SavedModel::add_options(options);
  options.add()("prompt", po::value<std::string>()->default_value("\n", "a new line"), "text to continue");
  options.add()("tokens", po::value<std::int64_t>()->default_value(256), "number of tokens to generate");
  options.add()("temperature", po::value<double>()->default_value(0.8, "0.8"),
                "above 0: randomness of the draws; 0: always take the most likely token");
  options.add()("seed", po::value<std::uint64_t>()->default_value(1), "seed of the draws");
  options.add()("json", "print one JSON document");
  options.positional("file");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;

  const std::string prompt = values["prompt"].as<std::string>();
  const std::string file = options.required(values, "file", "the checkpoint file is missing");
  SavedModel saved(file, values, program, session);
  const train::GenerateOptions how{.tokens = values["tokens"].as<std::int64_t>(),
                                   .temperature = values["temperature"].as<double>(),
                                   .seed = values["seed"].as<std::uint64_t>(),
                                   .compute = saved.compute()};
  const data::Tokenizers& tokenizers = program.registries.tokenizers;
  data::StoredTokenizer stored = saved.tokenizer();
  if (stored.name.empty()) stored.name = "bytes";
  const std::unique_ptr<data::Tokenizer> tokenizer = stored.make(tokenizers, file);
  if (tokenizers.configure(stored.name).type->replaces_built_in)
    session.log().info("note: tokenizer = {}: the program's own, not the built-in one", stored.name);
  const std::string text = train::generate(saved.model(), *tokenizer, session.backend(), prompt, how);
  if (session.world().rank() != 0) return ExitCode::done;
  if (values.count("json")) {
    print_json({{"prompt", prompt}, {"text", text}, {"step", saved.step()}});
  } else {
    fmt::print("{}{}\n", prompt, text);
  }
  return ExitCode::done;
}

}  // namespace lockstep::cli
