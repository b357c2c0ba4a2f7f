// GPT-2 as Hugging Face stores it becomes a gpt's weights: names, layouts, masks, the tied head.
#include <boost/test/unit_test.hpp>
#include <map>
#include <numeric>

#include "checkpoint/sample.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/models/registry.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(gpt2)

namespace lc = checkpoint;

constexpr std::int64_t layers = 2, channels = 8, vocab = 11, context = 5;

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
  std::unique_ptr<comm::Communicator> self = comm::make_self_communicator();
  TemporaryFolder folder;
  std::unique_ptr<models::Model> model = models::make_model(
      {.name = "gpt", .layers = layers, .heads = 2, .channels = channels, .context = context, .vocab = vocab},
      1);

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
  BOOST_TEST(load(tensors).notes.at(0).find("lm_head.weight taken for the embedding") != std::string::npos);
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

BOOST_FIXTURE_TEST_CASE(a_model_that_is_no_gpt_sees_no_gpt_names, Gpt) {
  const auto mlp = models::make_model({.name = "mlp", .sizes = {4, 3}}, 1);
  lc::Weights weights;
  weights.tensors = hugging_face("");
  lc::write_weights(folder.file("a.safetensors"), weights);
  BOOST_CHECK_EXCEPTION(lc::load_weights(folder.file("a.safetensors"), *mlp, *self), DataError,
                        mentions("missing: net.0.weight, net.0.bias", "h.0.attn.bias"));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
