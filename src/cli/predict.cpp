// lockstep predict: writes a model's output for every sample of a data file.
#include "train/infer/predict.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>

#include "base/files.h"
#include "base/text.h"
#include "cli/saved_model.h"
#include "cli/verb.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/tasks/diffusion.h"
#include "train/components.h"
#include "train/run/environment_fingerprint.h"

namespace lockstep::cli {
namespace {

/// What --output asks for.
enum class OutputKind { predictions, log_probabilities, network };

/// UsageError unless it is one of the words, and the model and its task have it.
OutputKind output_of(const std::string& word, const std::string& file, SavedModel& saved) {
  if (word == "network") return OutputKind::network;
  if (word != "logits" && word != "logprobs")
    throw UsageError("--output {}: must be logits, logprobs or network", quote(word));
  if (saved.config().task.options_of<tasks::Diffusion>())
    throw UsageError(
        "predict: {0}: a diffusion model predicts samples: use lockstep sample {1}, or --output network for "
        "what its network makes of x and t",
        file, shell_quoted(file));
  if (word == "logits") return OutputKind::predictions;
  if (saved.model().context() > 0) return OutputKind::log_probabilities;
  throw UsageError("--output logprobs: needs a language model; this model is not one");
}

/// The network reads x of DATA as it is there, with the fields that the task would make, such as t.
void take_as_network_reads(train::Config& config) {
  config.task = config.registries->tasks.configure("regression");
  config.data.format = "arrays";
  config.data.range.clear();
  config.data.normalize.clear();
  config.data.fields.clear();
}

/// What the outputs mean, by the task and the checkpoint.
train::PredictionMeaning meaning_of(SavedModel& saved) {
  const Task& task = saved.task();
  train::PredictionMeaning meaning{.output = task.output_meaning(), .classes = saved.class_names()};
  const auto& fields = saved.learned_from().fields;
  if (const auto target = fields.find(task.target()); target != fields.end()) {
    meaning.names = target->second.names.value;
    meaning.units = target->second.units.value;
  }
  return meaning;
}

/// The size, a digest of parts of the contents, the inode and the modification time of a file.
std::string state_of(const std::string& path) {
  constexpr std::uint64_t max_bytes = std::uint64_t{2} << 20;
  struct stat status {};
  const bool known = ::stat(path.c_str(), &status) == 0;
  return fmt::format("{}, inode {}, changed {}.{:09}", train::file_digest(path, max_bytes),
                     known ? status.st_ino : 0, known ? status.st_mtim.tv_sec : 0,
                     known ? status.st_mtim.tv_nsec : 0);
}

/// Identifies the normalization. That of images is explicit: it comes from the training data or from DATA.
std::string normalization_of(const train::DataSets& data, bool own_statistics) {
  if (data.format() == "images")
    if (const auto by = data.eval()->meaning("x").by) return nlohmann::json{by->mean, by->deviation}.dump();
  return own_statistics ? "that of the data" : "the checkpoint's";
}

}  // namespace

ExitCode predict(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "predict FILE.h5 --data DATA --out OUT.h5|OUT.csv [OPTIONS]",
                    "Predicts each sample of DATA, in order: as a table OUT.csv, or as OUT.h5 with\n"
                    "/output (logits, or values in the target's units), /label, /probability, /row.\n"
                    "The same bytes on any number of ranks. DATA needs only fields that the model\n"
                    "reads. Signals stop it; the same command continues OUT.part.");
  options.add()("data", po::value<std::string>(), "HDF5 data file, table (.csv) or folder of pictures");
  options.add()("out", po::value<std::string>(), "file to write: CSV if it ends with .csv, else HDF5");
  options.add()("force", "replace OUT if it exists");
  options.add()("fields", po::value<std::string>(),
                "arrays: names of fields in DATA, instead of data.fields of the run");
  options.add()("output", po::value<std::string>()->default_value("logits"),
                "logits; logprobs (language models); network: what it computes, of any model");
  options.add()("unknown", po::value<std::string>(), "as-missing: categories that training did not see");
  options.add()("own-statistics", "normalise by mean and deviation of DATA instead of the checkpoint's");
  SavedModel::add_options(options);
  options.positional("file");
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;

  const std::string file = options.required(values, "file", "the checkpoint file is missing");
  for (const char* const name : {"data", "out"})
    if (values.count(name) == 0) throw options.error(fmt::format("--{} FILE is missing", name));
  const std::string path = values["data"].as<std::string>(), output = values["output"].as<std::string>();
  // Comes before the checkpoint and the data are opened, which may take minutes.
  train::StopRequests requests("", false);
  SavedModel saved(file, values, program, session);
  const bool own = values.count("own-statistics") > 0;
  train::PredictOptions how{.out = values["out"].as<std::string>(),
                            .replace = values.count("force") > 0,
                            .compute = saved.compute()};
  std::optional<train::DataSets> data;
  train::Config config = saved.config();
  config.data.pictures.labels.clear();  // outputs need none
  train::LearnedFrom from = saved.learned_from();
  comm::run_on_all(session.world(), [&] {
    const OutputKind wanted = output_of(output, file, saved);
    how.log_probabilities = wanted == OutputKind::log_probabilities;
    if (wanted != OutputKind::network) {
      how.meaning = meaning_of(saved);
      const std::string target = saved.task().target();
      const std::vector<std::string>& normalized = config.data.normalize;
      if (const data::Normalization* const units = from.normalization(target);
          units && std::ranges::find(normalized, target) != normalized.end())
        how.units = *units;
    } else if (saved.task().takes_unit_range()) {
      take_as_network_reads(config);
      from.fields.clear();
    }
  });
  train::list_folders(config, session.world(), path);
  comm::run_on_all(session.world(), [&] {
    const auto fields = option_text(values, "fields");
    if (fields) train::set_fields(config, saved.model(), option::words_of(*fields));
    data.emplace(config, saved.model(), path, from, how.log_probabilities, own, unknown_as_missing(values));
    train::check_inputs(saved.model(), *data->eval());
    how.inputs = {path, file};
    for (const train::TrainingFile& input : train::training_files(config.data))
      how.inputs.push_back(input.path);
    std::error_code ignored;
    const std::filesystem::path canonical = std::filesystem::weakly_canonical(path, ignored);
    const kernels::Backend& backend = session.backend();
    const std::string listing = data->listing(),
                      checkpoint = std::filesystem::relative(file, directory_of(how.out), ignored).string();
    how.attributes = {{"checkpoint", checkpoint}, {"step", saved.step()}, {"weights", saved.weights()}};
    how.arguments = {
        {"checkpoint", fmt::format("{:016x}", saved.digest())},
        {"checkpoint file", escaped(checkpoint)},
        {"weights", saved.weights()},
        {"data", escaped(canonical.empty() ? path : canonical.string())},
        {"data file", listing.empty() ? state_of(path) : fmt::format("{:016x}", purpose_of(listing))},
        {"normalisation of images", normalization_of(*data, own)},
        {"fields", escaped(fields.value_or(""))},
        {"unknown categories", option_text(values, "unknown").value_or("refused")},
        {"output", output},
        {"precision", std::string(to_string(saved.compute()))},
        {"device", backend.device() == Device::cpu() ? "cpu" : "cuda"},
        {"instruction set", backend.instruction_set()},
        {"math library", backend.math_library()},
        {"number of threads", std::to_string(backend.threads())}};
  });
  data->hold_on_node(session.world(), saved.config());
  if (own) data->measure(session.world());
  train::log_warnings(*data, session);
  const ExitCode code = train::predict(session, saved.model(), *data->eval(), how, requests);
  if (code == ExitCode::done && session.world().rank() == 0)
    print_line(fmt::format("{}: outputs of {} of step {} for {} samples of {}", how.out, saved.weights(),
                           saved.step(), data->eval()->size(), path));
  return code;
}

}  // namespace lockstep::cli
