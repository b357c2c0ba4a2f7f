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

/// Whether --output is logprobs. UsageError unless it is logits, or logprobs for a language model.
bool wants_log_probabilities(const std::string& output, const models::Model& model) {
  if (output == "logits") return false;
  if (output != "logprobs") throw UsageError("--output {}: must be logits or logprobs", quote(output));
  if (model.context() > 0) return true;
  throw UsageError("--output logprobs: needs a language model; this model is not one");
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
  OptionSet options(program, "predict FILE.h5 --data DATA.h5 --out OUT.h5 [OPTIONS]",
                    "Writes the model's output for each sample of DATA, in order, as /output of OUT:\n"
                    "float32 [N, ...] (logits, not probabilities, for a classifier), with the same\n"
                    "bytes on any number of ranks. DATA needs only the fields that the model reads.\n"
                    "Signals stop it as they stop train; the same command continues OUT.part.");
  options.add()("data", po::value<std::string>(), "HDF5 data file, table (.csv) or folder of pictures");
  options.add()("out", po::value<std::string>(), "file to write");
  options.add()("force", "replace OUT if it exists");
  options.add()("fields", po::value<std::string>(),
                "arrays: names of fields in DATA, instead of data.fields of the run");
  options.add()("output", po::value<std::string>()->default_value("logits"),
                "language models: logits [T, V], or logprobs [T] of the targets");
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
  const std::string target(saved.task().target());
  const std::vector<std::string>& normalized = saved.config().data.normalize;
  if (const data::Normalization* const units = saved.learned_from().normalization(target);
      units && std::ranges::find(normalized, target) != normalized.end())
    how.units = *units;
  std::optional<train::DataSets> data;
  train::Config config = saved.config();
  config.data.pictures.labels.clear();  // outputs need none
  train::list_folders(config, session.world(), path);
  comm::run_on_all(session.world(), [&] {
    if (saved.config().task.options_of<tasks::Diffusion>())
      throw UsageError("predict: {0}: a diffusion model has no outputs to predict; use lockstep sample {0}",
                       file);
    how.log_probabilities = wants_log_probabilities(output, saved.model());
    const auto fields = option_text(values, "fields");
    if (fields) train::set_fields(config, saved.model(), option::words_of(*fields));
    data.emplace(config, saved.model(), path, saved.learned_from(), how.log_probabilities, own,
                 unknown_as_missing(values));
    train::check_inputs(saved.model(), *data->eval());
    how.inputs = {path, file};
    for (const train::TrainingFile& input : train::training_files(config.data))
      how.inputs.push_back(input.path);
    std::error_code ignored;
    const std::filesystem::path canonical = std::filesystem::weakly_canonical(path, ignored);
    const kernels::Backend& backend = session.backend();
    const std::string listing = data->listing();
    how.arguments = {
        {"checkpoint", fmt::format("{:016x}", saved.digest())},
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
    fmt::print("{}: outputs of {} of step {} for {} samples of {}\n", how.out, saved.weights(), saved.step(),
               data->eval()->size(), path);
  return code;
}

}  // namespace lockstep::cli
