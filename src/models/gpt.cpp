#include "lockstep/models/gpt.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "lockstep/models/registry.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep::models {

GptBlock::GptBlock(nn::Module& parent, std::string_view name, std::int64_t channels, std::int64_t heads,
                   double dropout, bool bias, ops::Activation activation)
    : Layer(parent, name),
      heads_(static_cast<int>(heads)),
      activation_(activation),
      ln_1_(*this, "ln_1", channels, 1e-5f, bias),
      c_attn_(*this, "attn.c_attn", channels, 3 * channels, bias),
      attn_c_proj_(*this, "attn.c_proj", channels, channels, bias),
      ln_2_(*this, "ln_2", channels, 1e-5f, bias),
      c_fc_(*this, "mlp.c_fc", channels, 4 * channels, bias),
      mlp_c_proj_(*this, "mlp.c_proj", 4 * channels, channels, bias),
      attn_dropout_(*this, "attn.dropout", static_cast<float>(dropout)),
      mlp_dropout_(*this, "mlp.dropout", static_cast<float>(dropout)) {}

Residual GptBlock::forward(const Residual& given, const Tensor& positions) {
  const auto [x, x_norm] = ln_1_(given.x, given.branch);
  const Var attention_output =
      attn_dropout_(attn_c_proj_(attention(c_attn_(x_norm), heads_, true, HeadOrder::thirds, positions)));
  const auto [sum, sum_norm] = ln_2_(x, attention_output);
  return {sum, mlp_dropout_(nn::feed_forward(sum_norm, c_fc_, activation_, mlp_c_proj_))};
}

std::vector<Option<Gpt::Options>> Gpt::Options::options() {
  using namespace option;
  using O = Options;
  return {
      number("layers", &O::layers, depths, "blocks",
             {.required = true, .peers = {"n_layer", "n_layers", "num_layers", "depth"}}),
      number("heads", &O::heads, widths, "attention heads",
             {.required = true, .peers = {"n_head", "n_heads", "num_heads"}}),
      number("channels", &O::channels, widths, "width of the embedding",
             {.required = true, .peers = {"n_embd", "d_model", "hidden_size", "embed_dim", "dim"}}),
      number("context", &O::context, widths, "length of a sample, in tokens",
             {.required = true,
              .peers = {"block_size", "n_positions", "n_ctx", "seq_len", "sequence_length", "max_seq_len"}}),
      number("vocab", &O::vocab, widths, "size of the vocabulary",
             {.required = true, .peers = {"vocab_size"}}),
      number("dropout", &O::dropout, Range::below(0, 1), "probability of zeroing an activation",
             {.keeps_weights = true}),
      flag("bias", &O::bias, "linear layers and norms have biases; nanoGPT's often have none"),
      choice("activation", &O::activation, {"gelu_tanh", "gelu_erf"},
             "GPT-2's approximation of the GELU, or by the error function, as nanoGPT's"),
      recompute_option(&O::recompute),
  };
}

Gpt::Gpt(const Options& options, std::uint64_t seed)
    : Model(seed),
      wte_(*this, "transformer.wte", checked(options).vocab, options.channels),
      wpe_(*this, "transformer.wpe", options.context, options.channels),
      dropout_(*this, "transformer.dropout", static_cast<float>(options.dropout)),
      recompute_(options.recompute),
      blocks_(*this, "transformer.h"),
      ln_f_(*this, "transformer.ln_f", options.channels, 1e-5f, options.bias) {
  if (options.channels % options.heads != 0)
    throw UsageError("model.heads = {} does not divide model.channels = {}", options.heads, options.channels);
  for (std::int64_t i = 0; i < options.layers; ++i)
    blocks_.emplace_back(
        options.channels, options.heads, options.dropout, options.bias,
        options.activation == "gelu_erf" ? ops::Activation::gelu_erf : ops::Activation::gelu_tanh);
  initialize_weights(options.layers);
}

void Gpt::initialize_weights(std::int64_t layers) {
  const float projection = 0.02f / std::sqrt(2 * static_cast<float>(layers));
  for (Param* const param : state().params) {
    if (param->value.shape().rank() == 2)
      initialize(*param, nn::Init::normal(param->name.ends_with("c_proj.weight") ? projection : 0.02f),
                 seed());
    else if (param->name.ends_with(".bias"))
      initialize(*param, nn::Init::constant(0), seed());
  }
}

void Gpt::check_input(const Shape& x) const {
  const std::int64_t context = wpe_.weight.value.size(0);
  if (x.rank() == 2 && x[1] <= context) return;
  throw DataError("a batch of shape {} does not fit the gpt's [batch, time] with time <= {} (model.context)",
                  to_string(x), context);
}

Var Gpt::forward(Tape& tape, const Batch& batch) {
  const Head last = *head(tape, batch);
  return linear(last.x, last.weight);
}

std::optional<Model::Head> Gpt::head(Tape& tape, const Batch& batch) {
  const Tensor& x = batch["x"];
  check_input(x.shape());
  const Tensor positions = positions_in(batch);
  Residual h{dropout_(add_positions(wte_(tape, x), tape.parameter(wpe_.weight), positions)), {}};
  for (GptBlock& block : blocks_) h = run_block(block, h, recompute_, positions);
  return Head{ln_f_(h.x, h.branch).norm, tape.weight(wte_.weight)};
}

namespace {

std::string gpt2_config(const ForeignWeights::OptionText& option) {
  if (option("bias") != "true") throw UsageError("Hugging Face's GPT-2 has biases, and this model has none");
  const auto number = [&](const char* name) { return nlohmann::json::parse(option(name)); };
  nlohmann::json config = {{"model_type", "gpt2"},          {"architectures", {"GPT2LMHeadModel"}},
                           {"n_layer", number("layers")},   {"n_head", number("heads")},
                           {"n_embd", number("channels")},  {"n_positions", number("context")},
                           {"vocab_size", number("vocab")}, {"layer_norm_epsilon", 1e-5}};
  config["activation_function"] = option("activation") == "gelu_erf" ? "gelu" : "gelu_new";
  return json_text(config, 2);
}

}  // namespace

/// Names may lack "transformer."; the four matrices of a block are stored [in, out] (Conv1D); attention masks
/// are stored like weights; the head, which is the embedding, may be stored as well or instead. Source:
/// transformers/models/gpt2/modeling_gpt2.py and pytorch_utils.py of Hugging Face. `config`: the keys of
/// GPT2Config (also those of its attribute_map) and of nanoGPT's model_args, with the values that this model
/// computes. Weights of a model with another value may fit, but compute something else.
const ForeignWeights Gpt::foreign{
    .layout = "huggingface",
    .model = "gpt",
    .program = "Hugging Face's GPT-2",
    .prefix = "transformer.",
    .blocks = "transformer.h.",
    .marker = "attn.c_attn.weight",
    .in_first = {"attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"},
    .factor = 3,
    .masks = {{.name = "attn.bias", .word = "mask", .value = 1, .triangle = true},
              {.name = "attn.masked_bias", .word = "masked_bias", .value = -1e4f}},
    .positions = "transformer.wpe.weight",
    .head = "lm_head.weight",
    .embedding = "transformer.wte.weight",
    .config =
        {{.names = {"model_type"}, .values = {R"("gpt2")"}, .ours = "a gpt takes gpt2", .names_model = true},
         {.names = {"architectures"},
          .values = {R"(["GPT2LMHeadModel"])", R"(["GPT2Model"])", "null"},
          .ours = "a gpt takes GPT2LMHeadModel",
          .names_model = true},
         {.names = {"n_head", "num_attention_heads"}, .option = "heads", .missing = "12"},
         {.names = {"n_layer", "num_hidden_layers"}, .option = "layers"},
         {.names = {"n_embd", "hidden_size"}, .option = "channels"},
         {.names = {"n_positions", "max_position_embeddings", "block_size"}, .option = "context"},
         {.names = {"vocab_size"}, .option = "vocab"},
         {.names = {"bias"}, .option = "bias"},
         {.names = {"activation_function"},
          .values = {R"("gelu_new")", R"("gelu_pytorch_tanh")", R"("gelu_python_tanh")", R"("gelu_fast")",
                     R"("gelu_accurate")", R"("gelu")"},
          .option = "activation",
          .words = {"gelu_tanh", "gelu_tanh", "gelu_tanh", "gelu_tanh", "gelu_tanh", "gelu_erf"},
          .missing = R"("gelu_new")"},
         {.names = {"scale_attn_weights"},
          .values = {"true"},
          .ours = "a gpt scales by the square root of a head's width"},
         {.names = {"scale_attn_by_inverse_layer_idx"},
          .values = {"false", "null"},
          .ours = "a gpt scales all layers alike"},
         {.names = {"layer_norm_epsilon"},
          .values = {"1e-05", "9.999999747378752e-06"},
          .ours = "a gpt has 1e-05"},
         {.names = {"add_cross_attention"},
          .values = {"false", "null"},
          .ours = "a gpt has no cross-attention"},
         {.names = {"n_inner"},
          .values = {"null"},
          .option = "channels",
          .times = 4,
          .ours = "a gpt has 4 times model.channels"}},
    .config_of = gpt2_config};

void register_gpt(Registry& registry) { registry.add<Gpt>("gpt"); }

}  // namespace lockstep::models
