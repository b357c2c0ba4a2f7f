// lockstep convert: weights alone, between checkpoints and .safetensors files.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "base/text.h"
#include "cli/saved_model.h"
#include "cli/verb.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/checkpoint/file.h"
#include "train/components.h"
#include "train/config.h"

namespace lockstep::cli {
namespace {

DType parse_dtype(const std::string& text) {
  if (text == "float32") return DType::float32;
  if (text == "bf16") return DType::bfloat16;
  throw UsageError("--dtype {}: is neither float32 nor bf16", text);
}

/// The weights, with the names and shapes of the configuration's model.
checkpoint::Weights fitted(const std::string& in, const std::string& group, const std::string& config_path,
                           bool narrow, const Registries& registries, const Log& log) {
  const train::Config config = train::read_config(config_path, {}, registries);
  train::check_config_json(in, config);
  const std::unique_ptr<models::Model> model = train::build_model(config);
  const std::unique_ptr<comm::HostGroup> self = comm::make_self_communicator();
  const checkpoint::LoadReport report =
      checkpoint::load_weights(in, *model, *self, group, {.strict = true, .narrow = narrow, .finite = false});
  for (const std::string& warning : report.warnings) log.warning("{}", warning);
  for (const std::string& note : report.notes) log.info("{}", note);
  checkpoint::Weights weights;
  const ModelState state = model->state();
  for (const Param* param : state.params) weights.tensors.push_back({param->name, param->value});
  for (const Buffer* buffer : state.buffers) weights.tensors.push_back({buffer->name, buffer->value});
  weights.position = report.index.position;
  weights.config = train::to_text(config);
  weights.provenance = report.provenance;
  weights.provenance["converted_from"] = in;
  if (group.starts_with("ema/")) weights.provenance["converted_weights"] = group;
  return weights;
}

void convert_file(const po::variables_map& values, const std::string& in, const std::string& out,
                  const Registries& registries, const Log& log) {
  const std::optional<std::string> weights_option = given(values, "weights");
  const std::string group = weights_option ? weights_group(*weights_option) : "";
  std::optional<DType> dtype;
  if (values.count("dtype")) dtype = parse_dtype(values["dtype"].as<std::string>());
  std::optional<checkpoint::WeightsLayout> layout;
  if (values.count("layout")) {
    layout = checkpoint::weights_layout_named(values["layout"].as<std::string>());
    if (!out.ends_with(".safetensors"))
      throw UsageError("--layout is for a .safetensors file; {} will be a checkpoint", out);
  }
  std::vector<std::string> inputs{in};
  if (const std::optional<std::string> config = given(values, "config")) inputs.push_back(*config);
  checkpoint::check_writable(out, values.count("force") > 0, inputs);

  checkpoint::Weights weights = values.count("config") ? fitted(in, group, values["config"].as<std::string>(),
                                                                dtype.has_value(), registries, log)
                                                       : checkpoint::read_weights(in, group);
  for (const std::string& note : weights.notes) log.info("{}", note);
  if (dtype) checkpoint::cast_floats(weights, *dtype);
  const bool safetensors = out.ends_with(".safetensors");
  if (safetensors) checkpoint::arrange(weights, layout, in);
  checkpoint::write_weights(out, weights, values.count("force") > 0);
  if (!safetensors && weights.config.empty())
    log.info("weights only, without a configuration: add --config CONFIG.ini to evaluate {}", out);
  std::int64_t elements = 0;
  for (const checkpoint::NamedTensor& tensor : weights.tensors) elements += tensor.value.numel();
  fmt::print("{}: {}, {}\n", out, pluralized(weights.tensors.size(), "tensor"),
             pluralized(elements, "element"));
}

}  // namespace

ExitCode convert(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "convert IN OUT [OPTIONS]",
                    "Writes the weights of IN (a checkpoint, .safetensors, or HDF5 with arrays under\n"
                    "/model or at its root) to OUT.safetensors or OUT.h5. Names, shapes, types and\n"
                    "the step are kept; optimizer and EMA weights are not copied. OUT.h5 is a\n"
                    "checkpoint: inspect, verify, diff and train.init read it. With --config it fits\n"
                    "that configuration's model, and eval and generate read it, too; a gpt then\n"
                    "reads what Hugging Face's GPT-2 stores (names without transformer., matrices\n"
                    "[in, out], masks, tied head), and a config.json next to it must fit. Weights\n"
                    "that came from such a file keep its names and matrices in OUT.safetensors, also\n"
                    "after training.");
  options.add()(
      "weights", po::value<std::string>(),
      "model, ema/RATE or ema/sigma_rel=S, with the model's buffers; default: model, or the EMA weights "
      "of a file without one");
  options.add()("dtype", po::value<std::string>(), "store floating-point numbers as float32 or bf16");
  options.add()("layout", po::value<std::string>(),
                "names and matrices of OUT.safetensors: lockstep, or huggingface, of a gpt only, as "
                "GPT2LMHeadModel takes them; default: as in the file that the weights came from");
  options.add()("config", po::value<std::string>(), "a configuration, stored with the weights");
  options.add()("force", "replace OUT if it exists");
  options.positional("file", 2);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  if (values.count("file") == 0 || values["file"].as<Arguments>().size() != 2) {
    throw options.error("the file to read and the file to make are needed");
  }
  const Arguments files = values["file"].as<Arguments>();
  on_rank_0(session, [&] { convert_file(values, files[0], files[1], program.registries, session.log()); });
  return ExitCode::done;
}

}  // namespace lockstep::cli
