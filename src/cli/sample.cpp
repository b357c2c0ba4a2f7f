// lockstep sample: writes samples of a generative model, as a picture or as a data file.
#include "train/infer/sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/text.h"
#include "cli/saved_model.h"
#include "cli/verb.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::cli {
namespace {

/// [sample] of the run, overridden by options of the command line, which have the same names.
train::SampleConfig with_options(train::SampleConfig config, const po::variables_map& values) {
  for (const Option<train::SampleConfig>& key : train::SampleConfig::options()) {
    if (values.count(key.name) == 0) continue;
    try {
      key.set(config, values[key.name].as<std::string>());
    } catch (const UsageError& error) {
      throw UsageError("--{}: {}", key.name, error.what());
    }
  }
  return config;
}

}  // namespace

ExitCode sample(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "sample FILE.h5 --out FILE.png|FILE.h5 [--count N] [OPTIONS]",
                    "Draws samples from the model of a checkpoint and writes them as a grid of images\n"
                    "(FILE.png) or in the form of the training data (FILE.h5), with the same bytes on\n"
                    "any number of ranks. Other options default to [sample] of the run.");
  const auto text = [] { return po::value<std::string>(); };
  options.add()("count", text(), "number of samples");
  options.add()("out", text(), "file to write");
  options.add()("force", "replace the file if it exists");
  options.add()("sampler", text(), "ddpm, ddim or dpmpp_2m");
  options.add()("steps", text(), "steps of the sampler: 250, ddim25 or 10,15,20");
  options.add()("eta", text(), "noise of ddim: 0 draws none, 1 as much as ddpm");
  options.add()("class", text(), "class of the samples: K, all (i mod num_classes for sample i) or none");
  options.add()("guidance", text(),
                "classifier-free guidance G: predict none + G (class - none); 1: class only");
  options.add()("seed", text(), "seed of the noise");
  SavedModel::add_options(options);
  options.positional("file");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;

  const std::string file = options.required(values, "file", "the checkpoint file is missing");
  if (values.count("out") == 0) throw options.error("--out FILE is missing");
  with_options({}, values);  // reports invalid options before it opens files
  // Comes before the checkpoint is opened, which may take minutes.
  train::StopRequests requests("", false);
  SavedModel saved(file, values, program, session, [](const train::Config& config) {
    return config.sample.weights.empty() ? "" : config.sample.weights.front();
  });
  const train::SampleConfig how = with_options(saved.config().sample, values);
  std::optional<train::Sampler> sampler;
  comm::run_on_all(session.world(), [&] {
    Generative* task = nullptr;
    try {
      task = &train::generative(saved.task(), saved.config().task.name());
    } catch (const UsageError& error) {
      throw UsageError("sample: {}: {}", file, error.what());
    }
    // A value without an option comes from a key of the run: errors name its source.
    const auto name_of = [&](const std::string& key) {
      return values.count(key) > 0 ? "--" + key : "sample." + key;
    };
    const train::SampleClasses classes(how.classes, saved.model(), name_of("class"));
    SampleOptions sampling = how.how;
    sampling.compute = saved.compute();
    try {
      task->check_sampling(saved.model(), sampling);
      classes.check_guidance(sampling);
    } catch (const UsageError& error) {
      const std::string why = error.what();  // it begins with the key
      const std::size_t end = std::min(why.find_first_of(" :"), why.size());
      throw UsageError("{}{}", name_of(why.substr(0, end)), why.substr(end));
    }
    sampler.emplace(
        train::SampledParts{
            .world = session.world(), .backend = session.backend(), .model = saved.model(), .task = *task},
        sampling, classes, how.count);
  });
  const train::SampleFileOptions out{.out = values["out"].as<std::string>(),
                                     .replace = values.count("force") > 0,
                                     .inputs = {file},
                                     .range = saved.range()};
  const ExitCode code = train::write_samples(session, *sampler, out, requests);
  if (code == ExitCode::done && session.world().rank() == 0)
    print_line(fmt::format("{}: {} of {} of step {}", out.out, pluralized(how.count, "sample"),
                           saved.weights(), saved.step()));
  return code;
}

}  // namespace lockstep::cli
