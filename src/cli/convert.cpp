// lockstep convert: converts weights between checkpoints, .safetensors files and files of torch.save.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <ranges>

#include "base/files.h"
#include "base/json.h"
#include "base/output.h"
#include "base/text.h"
#include "cli/saved_model.h"
#include "cli/verb.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/optim/ema.h"
#include "train/components.h"
#include "train/config.h"

namespace lockstep::cli {
namespace {

DType parse_dtype(const std::string& text) {
  if (text == "float32") return DType::float32;
  if (text == "bf16") return DType::bfloat16;
  throw UsageError("--dtype {}: must be float32 or bf16", text);
}

/// The weights with the names and shapes of the model of the configuration. `average`: a file of averages of
/// its parameters, which are returned instead, with buffers that the file lacks from `in`; or empty.
checkpoint::Weights fitted(const std::string& in, const std::string& group, const std::string& key,
                           const std::string& average, const std::string& config_path, bool narrow,
                           const Registries& registries, const Log& log) {
  const train::Config config = train::read_config(config_path, {}, registries, in);
  const std::unique_ptr<models::Model> model = train::build_model_of_file(config);
  const std::unique_ptr<comm::HostGroup> self = comm::make_self_communicator();
  checkpoint::LoadReport report = checkpoint::load_weights(
      in, *model, *self, group,
      {.strict = true, .narrow = narrow, .finite = false, .key = key, .log = average.empty()});
  std::string warning = train::check_trained_model(report, config);
  if (!average.empty()) {
    report = checkpoint::load_weights(
        average, *model, *self, "",
        {.strict = true, .narrow = narrow, .finite = false, .params_only = true, .key = {}});
    warning = train::check_trained_model(report, config);
  }
  if (!warning.empty()) log.warning("{}", warning);
  checkpoint::Weights weights;
  const ModelState state = model->state();
  for (const Param* param : state.params) weights.tensors.push_back({param->name, param->value});
  for (const Buffer* buffer : state.buffers) weights.tensors.push_back({buffer->name, buffer->value});
  weights.position = report.index.position;
  weights.config = train::to_text(config);
  weights.provenance = report.provenance;
  checkpoint::add_meaning(report.index, weights.data, weights.provenance);
  if (exists(in + "/tokenizer.json") || exists(in + "/merges.txt")) {
    const data::StoredTokenizer tokenizer = data::read_tokenizer(in);
    weights.provenance[train::tokenizer_provenance] = tokenizer.id();
    weights.provenance[train::tokenizer_text_provenance] = tokenizer.text;
  }
  weights.provenance["converted_from"] = average.empty() ? in : average;
  if (group.starts_with("ema/")) weights.provenance["converted_weights"] = group;
  return weights;
}

/// A file with EMA weights.
struct Average {
  optim::EmaProfile profile;
  std::string file;
};

/// Parses --ema RATE=FILE.
std::vector<Average> averages_of(const po::variables_map& values) {
  std::vector<Average> averages;
  if (values.count("ema") == 0) return averages;
  for (const std::string& text : values["ema"].as<Arguments>()) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
      throw UsageError("--ema {}: must be RATE=FILE, such as 0.9999=ema_0.9999_010000.pt", text);
    const optim::EmaProfile profile = optim::EmaProfile::named(text.substr(0, equals));
    if (profile.is_power())
      throw UsageError("--ema {}: must name a rate; power-function averages in such files are not supported",
                       text);
    averages.push_back({profile, text.substr(equals + 1)});
  }
  return averages;
}

/// Whether OUT is a folder: another name than that of a file, in the layout of another program.
bool is_folder(const std::string& out, const std::optional<std::string>& layout) {
  return layout && *layout != checkpoint::own_layout &&
         (is_directory(out) ||
          !(checkpoint::is_for_python(out) || out.ends_with(".h5") || out.ends_with(".hdf5")));
}

/// Writes weights, in the layout of Hugging Face, with the configuration and the tokenizer of their model.
void write_folder(const std::string& folder, const checkpoint::Weights& weights, bool replace,
                  std::span<const std::string> inputs, const Registries& registries) {
  if (weights.config.empty())
    throw UsageError("{}: the folder states the model's options; give them by --config CONFIG.ini", folder);
  const train::Config config = train::parse_stored_config(weights.config, folder, registries);
  const ForeignWeights* const foreign = config.model.type->traits.foreign;
  if (!foreign || !foreign->config_of)
    throw UsageError("{}: model.name = {}: Hugging Face has no such model; gpt and llama can be written",
                     folder, config.model.name());
  nlohmann::json stated = nlohmann::json::parse(
      foreign->config_of([&](std::string_view option) { return config.model.value(option); }));
  std::map<std::string, std::string> texts;
  if (const data::StoredTokenizer stored = train::stored_tokenizer(weights.provenance);
      stored.name == "bpe") {
    const auto made = stored.make(registries.tokenizers, folder);
    const std::int64_t end = made->end_of_document();
    nlohmann::json usage{{"tokenizer_class", "PreTrainedTokenizerFast"}};
    if (end >= 0) {
      stated["eos_token_id"] = end;
      usage["eos_token"] = made->decode(std::span(&end, 1));
    }
    texts = {{"tokenizer.json", stored.text}, {"tokenizer_config.json", json_text(usage, 2)}};
  }
  texts["config.json"] = json_text(stated, 2);
  const std::string weights_file = folder + "/model.safetensors";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  for (const std::string& input : inputs)
    if (is_directory(input) && std::filesystem::equivalent(input, folder, error))
      throw UsageError("{}: is read, and is never replaced", folder);
  if (error || !is_directory(folder)) throw UsageError("{}: cannot make this folder", folder);
  if (const std::string index = weights_file + ".index.json"; exists(index))
    throw UsageError("{}: is the index of other weights in this folder; remove it and its files", index);
  for (const auto& [name, text] : texts)
    check_output(folder + "/" + name, {.replace = replace, .inputs = inputs});
  checkpoint::check_writable(weights_file, replace, inputs);
  checkpoint::write_weights(weights_file, weights, replace);
  for (const auto& [name, text] : texts | std::views::reverse)  // config.json last
    write_text_atomically(folder + "/" + name, text + "\n");
}

void convert_file(const po::variables_map& values, const std::string& in, const std::string& out,
                  const Registries& registries, const Log& log) {
  const std::optional<std::string> weights_option = option_text(values, "weights");
  const std::string group = weights_option ? weights_group(*weights_option) : "";
  std::optional<DType> dtype;
  if (values.count("dtype")) dtype = parse_dtype(values["dtype"].as<std::string>());
  std::vector<const ForeignWeights*> known;
  std::vector<std::string> layouts{std::string(checkpoint::own_layout)};
  for (const models::ModelType& type : registries.models.types()) {
    if (!type.traits.foreign) continue;
    known.push_back(type.traits.foreign);
    if (const std::string name(known.back()->layout); !name.empty() && std::ranges::count(layouts, name) == 0)
      layouts.push_back(name);
  }
  const std::optional<std::string> layout = option_text(values, "layout");
  if (layout) {
    option::check_word(*layout, layouts);
    if (!checkpoint::is_for_python(out) && !is_folder(out, layout))
      throw UsageError(
          "--layout applies to .safetensors and .pt files and to folders only, but {} is a checkpoint; omit "
          "--layout",
          out);
  }
  const std::vector<Average> averages = averages_of(values);
  if (!averages.empty() && (checkpoint::is_for_python(out) || is_folder(out, layout)))
    throw UsageError("--ema: {} can hold one set of weights only; write a .h5 file", out);
  const std::optional<std::string> config = option_text(values, "config"),
                                   optimizer = option_text(values, "optimizer");
  if (optimizer && (!config || checkpoint::is_for_python(out) || is_folder(out, layout)))
    throw UsageError("--optimizer: needs OUT.h5, and --config CONFIG.ini, whose model names its parameters");
  std::vector<std::string> inputs{in};
  for (const Average& average : averages) inputs.push_back(average.file);
  for (const auto& [name, file] : {std::pair("config", config), {"optimizer", optimizer}}) {
    if (file && file->empty()) throw UsageError("--{}: the file name is missing", name);
    if (file) inputs.push_back(*file);
  }
  const bool folder = is_folder(out, layout);
  if (!folder) checkpoint::check_writable(out, values.count("force") > 0, inputs);

  const std::string key = option_text(values, "key").value_or("");
  const auto read = [&](const std::string& average) {
    checkpoint::Weights weights =
        config            ? fitted(in, group, key, average, *config, dtype.has_value(), registries, log)
        : average.empty() ? checkpoint::read_weights(in, group, key, known)
                          : checkpoint::read_weights(average, "", "", known);
    for (const std::string& note : weights.notes) log.info("{}", note);
    return weights;
  };
  checkpoint::Weights weights = read("");
  if (optimizer) {
    const train::Config wanted = train::read_config(*config, {}, registries, in);
    log.info("{}", checkpoint::add_optimizer(weights, *optimizer, train::build_meta_model(wanted)->state()));
    if (const std::string& name = wanted.optimizer.algorithm.name(); name != "adamw")
      log.warning("{}: the state is of optimizer.name = adamw, but {} has {}, which cannot continue it", out,
                  *config, name);
  }
  for (const auto& [profile, file] : averages)
    checkpoint::add_average(weights, in, profile, read(file), file);
  if (dtype) checkpoint::cast_floats(weights, *dtype);
  const bool for_python = folder || checkpoint::is_for_python(out);
  if (for_python) checkpoint::arrange(weights, layout, in, known);
  if (folder)
    write_folder(out, weights, values.count("force") > 0, inputs, registries);
  else
    checkpoint::write_weights(out, weights, values.count("force") > 0);
  if (!for_python && weights.config.empty())
    log.info("{} holds weights without a configuration; to evaluate it, convert with --config CONFIG.ini",
             out);
  std::int64_t elements = 0;
  for (const checkpoint::NamedTensor& tensor : weights.tensors) elements += tensor.value.numel();
  std::string with_averages;
  for (const checkpoint::Section& average : weights.averages)
    with_averages += fmt::format(", and {}", average.path);
  print_line(fmt::format("{}: {}, {}{}", out, pluralized(weights.tensors.size(), "tensor"),
                         pluralized(elements, "element"), with_averages));
}

}  // namespace

ExitCode convert(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "convert IN OUT [OPTIONS]",
                    "Writes the weights of IN to OUT.h5, OUT.safetensors or OUT.pt. IN is a\n"
                    "checkpoint, a .safetensors file, a file of torch.save (its code is not executed)\n"
                    "or an HDF5 file with arrays under /model or at its root. Keeps names, shapes,\n"
                    "types and the step, but no optimizer state or EMA weights. With --config, OUT.h5\n"
                    "fits that model, and eval, predict and generate can read it.");
  options.add()(
      "weights", po::value<std::string>(),
      "model, ema/RATE or ema/sigma_rel=S; default: model, or the EMA weights of a file without it");
  options.add()(
      "key", po::value<std::string>(),
      "torch.save: read the tensors under this key (a/b: b in a; /: the top level); default: model ...");
  options.add()("ema", po::value<Arguments>()->composing(),
                "RATE=FILE: add the weights of FILE to OUT.h5 as ema/RATE; may be repeated");
  options.add()("optimizer", po::value<std::string>(),
                "FILE.pt: add the state of PyTorch's AdamW to OUT.h5, for train --fork");
  options.add()("dtype", po::value<std::string>(),
                "store floating-point numbers as float32 or bf16; default: unchanged");
  options.add()("layout", po::value<std::string>(),
                "lockstep or huggingface (gpt, llama; OUT may be a folder); default: that of the origin");
  options.add()("config", po::value<std::string>(), "configuration file to store with the weights");
  options.add()("force", "replace OUT if it exists");
  options.positional("file", 2);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  if (values.count("file") == 0 || values["file"].as<Arguments>().size() != 2) {
    throw options.error("the input file and the output file are needed");
  }
  const Arguments files = values["file"].as<Arguments>();
  on_rank_0(session, [&] { convert_file(values, files[0], files[1], program.registries, session.log()); });
  return ExitCode::done;
}

}  // namespace lockstep::cli
