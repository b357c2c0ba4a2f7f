// GPT-2 as Hugging Face stores it becomes a gpt's weights: names, layouts, masks, the tied head.
#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <map>
#include <numeric>

#include "checkpoint/sample.h"
#include "checkpoint/weights/foreign.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/models/gpt.h"
#include "lockstep/models/mlp.h"
#include "lockstep/models/registry.h"
#include "lockstep/models/resnet.h"
#include "lockstep/models/vit.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(gpt2)

namespace lc = checkpoint;

constexpr std::int64_t layers = 2, channels = 8, vocab = 11, context = 5;

const std::vector<const ForeignWeights*> known{&models::Gpt::foreign, &models::Resnet::foreign};

/// Distinct numbers, a different thousand for each tensor.
Tensor counting(const Shape& shape, int first) {
  const Tensor tensor = Tensor::empty(shape);
  std::iota(tensor.data<float>(), tensor.data<float>() + tensor.numel(), static_cast<float>(first));
  return tensor;
}

/// What transformers' GPT2Model writes: layers.N matrices as [in, out].
std::vector<lc::NamedTensor> hugging_face(const std::string& prefix) {
  constexpr std::int64_t c = channels;
  std::vector<lc::NamedTensor> tensors;
  int next = 0;
  const auto add = [&](const std::string& name, const Shape& shape) {
    tensors.push_back({prefix + name, counting(shape, next += 1000)});
  };
  add("wte.weight", {vocab, c});
  add("wpe.weight", {context, c});
  for (int i = 0; i < layers; ++i) {
    const std::string h = "h." + std::to_string(i) + ".";
    add(h + "ln_1.weight", {c});
    add(h + "ln_1.bias", {c});
    add(h + "attn.bias", {1, 1, context, context});
    add(h + "attn.masked_bias", {});
    add(h + "attn.c_attn.weight", {c, 3 * c});
    add(h + "attn.c_attn.bias", {3 * c});
    add(h + "attn.c_proj.weight", {c, c});
    add(h + "attn.c_proj.bias", {c});
    add(h + "ln_2.weight", {c});
    add(h + "ln_2.bias", {c});
    add(h + "mlp.c_fc.weight", {c, 4 * c});
    add(h + "mlp.c_fc.bias", {4 * c});
    add(h + "mlp.c_proj.weight", {4 * c, c});
    add(h + "mlp.c_proj.bias", {c});
  }
  add("ln_f.weight", {c});
  add("ln_f.bias", {c});
  return tensors;
}

struct Gpt {
  std::unique_ptr<comm::HostGroup> self = comm::make_self_communicator();
  TemporaryFolder folder;
  static models::Gpt::Options options() {
    return {.layers = layers, .heads = 2, .channels = channels, .context = context, .vocab = vocab};
  }
  std::unique_ptr<models::Model> model = std::make_unique<models::Gpt>(options(), 1);

  lc::LoadReport load(const std::vector<lc::NamedTensor>& tensors, const char* file = "a.safetensors",
                      const lc::LoadOptions& options = {}) {
    lc::Weights weights;
    weights.tensors = tensors;
    lc::write_weights(folder.file(file), weights, true);
    return lc::load_weights(folder.file(file), *model, *self, {}, options);
  }

  const float* values(const std::string& name) {
    for (const Param* param : model->state().params)
      if (param->name == name) return param->value.data<float>();
    throw std::runtime_error("no parameter " + name);
  }

  /// Every parameter holds what the file has, at its own place.
  void check_all(const std::vector<lc::NamedTensor>& tensors, const std::string& prefix) {
    std::map<std::string, Tensor> stored;
    for (const lc::NamedTensor& tensor : tensors) stored[tensor.name.substr(prefix.size())] = tensor.value;
    std::size_t matrices = 0;
    for (const Param* param : model->state().params) {
      const Tensor& from = stored.at(param->name.substr(std::string("transformer.").size()));
      const float *ours = param->value.data<float>(), *theirs = from.data<float>();
      const bool in_first = param->name.find(".h.") != std::string::npos && param->value.shape().rank() == 2;
      bool same = true;
      for (std::int64_t i = 0; i < param->value.numel(); ++i) {
        const std::int64_t columns = in_first ? param->value.size(1) : 1, row = i / columns,
                           column = i % columns;
        same = same && ours[i] == theirs[in_first ? column * param->value.size(0) + row : i];
      }
      matrices += in_first;
      BOOST_TEST(same, param->name);
    }
    BOOST_TEST(matrices == 8u);
  }
};

BOOST_FIXTURE_TEST_CASE(names_layouts_and_masks_are_understood_from_both_formats_with_and_without_prefix,
                        Gpt) {
  for (const char* file : {"a.safetensors", "a.h5"}) {
    for (const std::string prefix : {"", "transformer.", "module.", "_orig_mod.transformer."}) {
      const std::vector<lc::NamedTensor> tensors = hugging_face(prefix);
      const lc::LoadReport report = load(tensors, file);
      BOOST_TEST(report.warnings.empty());
      BOOST_TEST(report.notes.at(0).find("8 matrices stored [in, out] transposed; 4 masks ignored") !=
                 std::string::npos);
      check_all(tensors, prefix);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(a_head_that_equals_the_embedding_is_it_and_another_is_an_error, Gpt) {
  std::vector<lc::NamedTensor> tensors = hugging_face("transformer.");
  tensors.push_back({"lm_head.weight", counting({vocab, channels}, 1000)});
  BOOST_TEST(load(tensors).notes.at(0).find("lm_head.weight ignored") != std::string::npos);
  check_all(hugging_face("transformer."), "transformer.");

  tensors.back().value = counting({vocab, channels}, 1001);
  BOOST_CHECK_EXCEPTION(load(tensors), DataError, mentions("lm_head.weight differs from the embedding"));
  BOOST_TEST(load(tensors, "a.safetensors", {.strict = false}).warnings.size() == 1u);

  tensors.erase(tensors.begin());  // what safetensors keeps of two names for one tensor
  BOOST_TEST(load(tensors).notes.at(0).find("lm_head.weight read as the embedding") != std::string::npos);
  BOOST_TEST(values("transformer.wte.weight")[0] == 1001.0f);
}

BOOST_FIXTURE_TEST_CASE(our_own_layout_is_left_alone, Gpt) {
  std::vector<lc::NamedTensor> own;
  for (const Param* param : model->state().params)
    own.push_back({param->name, counting(param->value.shape(), static_cast<int>(1000 * own.size()))});
  const lc::LoadReport report = load(own);
  BOOST_TEST(report.notes.empty());
  for (const lc::NamedTensor& tensor : own)
    BOOST_TEST(std::memcmp(values(tensor.name), tensor.value.raw(), tensor.value.bytes()) == 0, tensor.name);
}

BOOST_FIXTURE_TEST_CASE(another_size_is_refused_with_the_shapes_of_the_file, Gpt) {
  std::vector<lc::NamedTensor> tensors = hugging_face("");
  for (lc::NamedTensor& tensor : tensors) {
    if (tensor.name == "h.0.attn.c_proj.weight") tensor.value = counting({channels, 7}, 0);
    if (tensor.name == "wte.weight") tensor.value = counting({vocab + 1, channels}, 0);
  }
  tensors.push_back({"h.2.ln_1.weight", counting({channels}, 0)});
  BOOST_CHECK_EXCEPTION(
      load(tensors), DataError,
      mentions("unexpected: h.2.ln_1.weight", "transformer.wte.weight is [12, 8] in the file, [11, 8] here",
               "transformer.h.0.attn.c_proj.weight is [8, 7], to be transposed, in the file, [8, 8] here"));
}

/// The masks that GPT-2 has: ones up to the diagonal, and -10000.
std::vector<lc::NamedTensor> with_true_masks(std::vector<lc::NamedTensor> tensors) {
  for (lc::NamedTensor& tensor : tensors) {
    float* const values = tensor.value.data<float>();
    if (tensor.name.ends_with("attn.masked_bias")) *values = -1e4f;
    if (!tensor.name.ends_with(".attn.bias")) continue;
    for (std::int64_t i = 0; i < context * context; ++i) values[i] = i % context <= i / context ? 1.0f : 0.0f;
  }
  return tensors;
}

/// The same names with the same bits, in any order.
void check_same(const std::vector<lc::NamedTensor>& expected, const std::vector<lc::NamedTensor>& found) {
  std::map<std::string, Tensor> by_name;
  for (const lc::NamedTensor& tensor : found) by_name[tensor.name] = tensor.value;
  BOOST_TEST(found.size() == expected.size());
  for (const lc::NamedTensor& tensor : expected) {
    BOOST_TEST_REQUIRE(by_name.contains(tensor.name), tensor.name);
    const Tensor& other = by_name[tensor.name];
    BOOST_TEST((other.shape() == tensor.value.shape() && other.dtype() == tensor.value.dtype()), tensor.name);
    BOOST_TEST(std::memcmp(other.raw(), tensor.value.raw(), other.bytes()) == 0, tensor.name);
  }
}

/// As `convert FILE x.h5 --config`, then `convert x.h5 y.safetensors`.
struct ThereAndBack : Gpt {
  std::vector<lc::NamedTensor> of(const std::vector<lc::NamedTensor>& tensors,
                                  const std::optional<std::string>& layout = {}) {
    const lc::LoadReport report = load(tensors);
    lc::Weights weights;
    for (const Param* param : model->state().params) weights.tensors.push_back({param->name, param->value});
    weights.provenance = report.provenance;
    const std::string checkpoint = folder.file("x.h5"), file = folder.file("y.safetensors");
    lc::write_weights(checkpoint, weights, true);
    return back(checkpoint, file, layout);
  }
  static std::vector<lc::NamedTensor> back(const std::string& checkpoint, const std::string& file,
                                           const std::optional<std::string>& layout = {}) {
    lc::Weights read = lc::read_weights(checkpoint);
    lc::arrange(read, layout, checkpoint, known);
    lc::write_weights(file, read, true);
    return lc::read_weights(file).tensors;
  }
};

BOOST_FIXTURE_TEST_CASE(what_came_from_hugging_face_goes_back_bit_by_bit_under_the_names_it_had,
                        ThereAndBack) {
  for (const std::string prefix : {"", "transformer.", "module.transformer."}) {
    std::vector<lc::NamedTensor> tensors = with_true_masks(hugging_face(prefix));
    check_same(tensors, of(tensors));
    tensors.push_back({"lm_head.weight", counting({vocab, channels}, 1000)});  // the embedding's numbers
    check_same(tensors, of(tensors));
    tensors.erase(tensors.begin());  // the head alone
    check_same(tensors, of(tensors));
  }
}

BOOST_FIXTURE_TEST_CASE(masks_that_are_not_gpt2s_are_left_out_on_the_way_back, ThereAndBack) {
  const std::vector<lc::NamedTensor> tensors = hugging_face("");
  std::vector<lc::NamedTensor> weights;
  for (const lc::NamedTensor& tensor : tensors)
    if (!tensor.name.ends_with(".attn.bias") && !tensor.name.ends_with(".masked_bias"))
      weights.push_back(tensor);
  check_same(weights, of(tensors));
}

BOOST_FIXTURE_TEST_CASE(the_layout_can_be_asked_for_whatever_the_weights_came_from, ThereAndBack) {
  std::vector<lc::NamedTensor> own;
  for (const Param* param : model->state().params)
    own.push_back({param->name, counting(param->value.shape(), static_cast<int>(1000 * own.size()))});
  check_same(own, of(own));
  check_same(own, of(own, "lockstep"));
  const std::vector<lc::NamedTensor> there = of(own, "huggingface");
  load(there);
  for (const lc::NamedTensor& tensor : own)
    BOOST_TEST(std::memcmp(values(tensor.name), tensor.value.raw(), tensor.value.bytes()) == 0, tensor.name);
  const auto c_attn = std::ranges::find(there, "transformer.h.0.attn.c_attn.weight", &lc::NamedTensor::name);
  BOOST_TEST_REQUIRE((c_attn != there.end()));
  BOOST_TEST((c_attn->value.shape() == Shape{channels, 3 * channels}));
  for (const lc::NamedTensor& tensor : of(hugging_face(""), "lockstep"))
    BOOST_TEST(tensor.name.starts_with("transformer."), tensor.name);
}

BOOST_FIXTURE_TEST_CASE(the_layout_of_others_is_refused_for_weights_that_cannot_have_it, ThereAndBack) {
  lc::Weights weights;
  weights.tensors = {{"net.0.weight", counting({3, 4}, 1)}};
  BOOST_CHECK_EXCEPTION(lc::arrange(weights, "huggingface", "mlp.h5", known), UsageError,
                        mentions("mlp.h5: its weights do not belong to a gpt"));
  lc::arrange(weights, {}, "mlp.h5", known);
  weights.tensors = hugging_face("");
  BOOST_CHECK_EXCEPTION(lc::arrange(weights, "lockstep", "a.safetensors", known), UsageError,
                        mentions("a.safetensors: ", "give --config"));
  lc::arrange(weights, "huggingface", "a.safetensors", known);
  check_same(hugging_face(""), weights.tensors);
}

BOOST_FIXTURE_TEST_CASE(a_run_that_began_there_and_was_resumed_records_the_layout_still, ThereAndBack) {
  const std::vector<lc::NamedTensor> tensors = with_true_masks(hugging_face(""));
  const lc::LoadReport report = load(tensors);
  {
    lc::Store store(folder.file("run"), *self);
    store.note(report.provenance);
    store.save(1, model->state());
  }
  std::string newest;
  {
    lc::Store store(folder.file("run"), *self);
    store.resume(model->state());
    newest = store.save(2, model->state());
  }
  check_same(tensors, back(newest, folder.file("z.safetensors")));
  // And a run that begins at its weights.
  models::Gpt other(options(), 2);
  BOOST_TEST((lc::load_weights(newest, other, *self).provenance == report.provenance));
}

/// config.json in the folder of weights, for a gpt of the fixture's sizes.
struct Configured : Gpt {
  std::string weights = folder.file("model.safetensors");
  models::ModelConfig config = models::built_in_models().configure("gpt");
  Configured() {
    *config.options_of<models::Gpt>() = options();
    lc::Weights first;
    first.tensors = hugging_face("transformer.");
    lc::write_weights(weights, first);
  }

  void check(const std::string& text) {
    write_bytes(folder.file("config.json"), text);
    compare(weights, lc::read_weights(weights, {}, {}, known).provenance[lc::foreign_config_key]);
  }
  void compare(const std::string& file, const std::string& stated) {
    if (stated.empty()) return;
    lc::check_foreign_config(file, stated, models::Gpt::foreign,
                             [&](std::string_view option) { return config.value(option); });
  }
  void refused(const std::string& text, const char* what) {
    BOOST_CHECK_EXCEPTION(check(text), UsageError, mentions("/config.json: ", what));
  }
};

BOOST_FIXTURE_TEST_CASE(config_json_beside_weights_must_be_of_this_model, Configured) {
  BOOST_TEST(!lc::read_weights(weights, {}, {}, known).provenance.contains(lc::foreign_config_key));
  refused(R"({"n_head": 4, "n_layer": 2})", "n_head is \"4\", but model.heads is 2");
  refused(R"({"num_attention_heads": 4})", "num_attention_heads is \"4\", but model.heads is 2");
  refused(R"({"n_head": 2, "num_attention_heads": 4})", "num_attention_heads is \"4\"");
  refused(R"({"model_type": "gpt2"})", "n_head is missing, which means 12, but model.heads is 2");
  refused(R"({"architectures": ["GPT2LMHeadModel"]})", "n_head is missing, which means 12");
  refused(R"({"n_layer": 12})", "n_layer is \"12\", but model.layers is 2");
  refused(R"({"num_hidden_layers": 12})", "num_hidden_layers is \"12\", but model.layers is 2");
  refused(R"({"n_embd": 768})", "n_embd is \"768\", but model.channels is 8");
  refused(R"({"hidden_size": 768})", "hidden_size is \"768\", but model.channels is 8");
  refused(R"({"n_positions": 1024})", "n_positions is \"1024\", but model.context is 5");
  refused(R"({"vocab_size": "eleven"})", "vocab_size is \"eleven\", but model.vocab is 11");
  refused(R"({"model_type": "llama"})", "model_type is \"llama\", but a gpt takes gpt2");
  refused(R"({"architectures": ["GPTBigCodeForCausalLM"], "n_head": 2})", "architectures is ");
  refused(R"({"activation_function": "relu"})",
          "activation_function is \"relu\", but model.activation is gelu_tanh");
  refused(R"({"activation_function": "gelu"})", "but model.activation is gelu_tanh");  // by erf
  refused(R"({"scale_attn_weights": false})", "scale_attn_weights is \"false\"");
  refused(R"({"scale_attn_by_inverse_layer_idx": true})", "scales all layers alike");
  refused(R"({"layer_norm_epsilon": 1e-6})", "a gpt has 1e-05");
  refused(R"({"add_cross_attention": true})", "a gpt has no cross-attention");
  refused(R"({"n_inner": 16})", "a gpt has 4 times model.channels");
  refused("[1, 2", "is not a JSON object");
  refused("\xff\xfe", "is not a JSON object");
}

BOOST_FIXTURE_TEST_CASE(config_json_of_the_same_arithmetic_is_accepted_however_it_is_spelled, Configured) {
  check(R"({"model_type": "gpt2", "architectures": ["Other"], "n_head": 2, "n_layer": 2, "n_embd": 8,
            "n_positions": 5, "vocab_size": 11, "activation_function": "gelu_new", "resid_pdrop": 0.5,
            "layer_norm_epsilon": 1e-05, "scale_attn_weights": true, "n_inner": null})");
  check(R"({"model_type": "gpt2", "num_attention_heads": 2.0, "hidden_size": 8, "n_inner": 32})");
  check(R"({"layer_norm_epsilon": 9.999999747378752e-06, "scale_attn_by_inverse_layer_idx": null})");
  for (const char* const same : {"gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate"})
    check(fmt::format(R"({{"activation_function": "{}"}})", same));
  check(R"({"name": "an application"})");
  config.options_of<models::Gpt>()->activation = "gelu_erf";
  check(R"({"activation_function": "gelu"})");
  refused(R"({"activation_function": "gelu_new"})", "but model.activation is gelu_erf");
  config.options_of<models::Gpt>()->heads = 12;
  refused(R"({"model_type": "gpt2"})", "activation_function is missing, which means \"gelu_new\"");
  config.options_of<models::Gpt>()->activation = "gelu_tanh";
  check(R"({"model_type": "gpt2"})");
}

BOOST_FIXTURE_TEST_CASE(a_word_of_config_json_that_no_option_has_is_no_option, Configured) {
  write_bytes(folder.file("config.json"), R"({"activation_function": "relu", "n_head": 4})");
  const auto options = lc::foreign_options(folder.path(), models::Gpt::foreign);
  BOOST_TEST(options.size() == 1u);
  BOOST_TEST(options.at("heads") == "4");
}

BOOST_FIXTURE_TEST_CASE(what_config_json_says_goes_with_weights_that_are_converted_without_a_model,
                        Configured) {
  write_bytes(folder.file("config.json"), R"({"model_type": "gpt2", "n_head": 4, "id2label": {"0": "a"}})");
  std::filesystem::create_directory(folder.file("away"));
  std::string last = weights;
  for (const char* const next : {"away/a.h5", "away/b.h5", "away/c.safetensors", "away/d.pt", "away/e.h5"}) {
    lc::write_weights(folder.file(next), lc::read_weights(last, {}, {}, known));
    last = folder.file(next);
    lc::LoadReport report = lc::load_weights(last, *model, *self);
    const std::string stated = report.provenance[lc::foreign_config_key];
    BOOST_CHECK_EXCEPTION(compare(last, stated), UsageError,
                          mentions("/config.json: n_head is \"4\", but model.heads is 2: ", next));
    BOOST_TEST(stated.find("id2label") == stated.npos);
  }
  BOOST_CHECK_EXCEPTION(compare(last, "["), DataError, mentions("gpt2_config is damaged"));
  BOOST_CHECK_EXCEPTION(compare(last, "{\"a\": 1}"), DataError, mentions("is damaged"));
}

BOOST_FIXTURE_TEST_CASE(a_model_that_is_no_gpt_sees_no_gpt_names, Gpt) {
  models::Mlp mlp({.sizes = {4, 3}}, 1);
  lc::Weights weights;
  weights.tensors = hugging_face("");
  lc::write_weights(folder.file("a.safetensors"), weights);
  BOOST_CHECK_EXCEPTION(lc::load_weights(folder.file("a.safetensors"), mlp, *self), DataError,
                        mentions("missing: net.0.weight, net.0.bias", "h.0.attn.bias"));
}

BOOST_FIXTURE_TEST_CASE(bottleneck_blocks_are_named_in_place_of_all_their_tensors, Gpt) {
  models::Resnet resnet({.blocks = {1, 1}, .width = 4, .in_channels = 3, .classes = 10}, 1);
  lc::Weights weights;
  for (const char* name :
       {"conv1.weight", "layer1.0.conv1.weight", "layer1.0.conv2.weight", "layer1.0.conv3.weight"})
    weights.tensors.push_back({std::string("module.") + name, counting({4, 3, 1, 1}, 0)});
  lc::write_weights(folder.file("resnet50.safetensors"), weights);
  BOOST_CHECK_EXCEPTION(
      lc::load_weights(folder.file("resnet50.safetensors"), resnet, *self), DataError,
      mentions("resnet50.safetensors: it holds bottleneck blocks", "set model.block = bottleneck"));
}

BOOST_FIXTURE_TEST_CASE(files_without_counts_of_batches_fit_and_are_noted, Gpt) {
  models::Resnet resnet({.blocks = {1}, .width = 4, .in_channels = 3, .classes = 10}, 1);
  lc::Weights weights;
  const ModelState state = resnet;
  for (const Param* const param : state.params) weights.tensors.push_back({param->name, param->value});
  for (const Buffer* const buffer : state.buffers)
    if (!buffer->name.ends_with("num_batches_tracked"))
      weights.tensors.push_back({buffer->name, buffer->value});
  lc::write_weights(folder.file("old.pth"), weights);
  const lc::LoadReport report = lc::load_weights(folder.file("old.pth"), resnet, *self);
  BOOST_TEST(report.warnings.empty());
  BOOST_TEST(report.notes.back() == folder.file("old.pth") +
                                        ": lacks bn1.num_batches_tracked, layer1.0.bn1.num_batches_tracked, "
                                        "layer1.0.bn2.num_batches_tracked, which keep their values");
  weights.tensors.pop_back();  // running_var: no file lacks it
  lc::write_weights(folder.file("short.pth"), weights);
  BOOST_CHECK_EXCEPTION(lc::load_weights(folder.file("short.pth"), resnet, *self), DataError,
                        mentions("missing: layer1.0.bn2.running_var"));
}

BOOST_FIXTURE_TEST_CASE(a_vit_takes_the_names_of_earlier_versions_of_torchvision, Gpt) {
  const models::Vit::Options options{.image_size = 4,
                                     .patch = 2,
                                     .layers = 1,
                                     .heads = 2,
                                     .channels = 8,
                                     .mlp_channels = 12,
                                     .in_channels = 1,
                                     .classes = 3};
  models::Vit vit(options, 1), other(options, 2);
  lc::Weights weights;
  for (const Param* const param : vit.state().params) {
    std::string name = param->name;
    if (const std::size_t at = name.find("mlp.0."); at != std::string::npos)
      name.replace(at, 6, "mlp.linear_1.");
    if (const std::size_t at = name.find("mlp.3."); at != std::string::npos)
      name.replace(at, 6, "mlp.linear_2.");
    weights.tensors.push_back({"module." + name, param->value});
  }
  lc::write_weights(folder.file("vit.pth"), weights);
  const lc::LoadReport report = lc::load_weights(folder.file("vit.pth"), other, *self);
  BOOST_TEST(report.notes.back().find("2 names of an earlier version ('.mlp.linear_2.' is '.mlp.3.')") !=
             std::string::npos);
  const ModelState found = other, wanted = vit;
  for (std::size_t i = 0; i < found.params.size(); ++i)
    BOOST_TEST(std::equal(found.params[i]->value.data<float>(),
                          found.params[i]->value.data<float>() + found.params[i]->value.numel(),
                          wanted.params[i]->value.data<float>()),
               found.params[i]->name);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
