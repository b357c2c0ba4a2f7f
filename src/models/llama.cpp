#include "lockstep/models/llama.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "lockstep/autograd/recompute.h"
#include "lockstep/models/registry.h"

namespace lockstep::models {

using nlohmann::json;

std::vector<Option<Llama::Options>> Llama::Options::options() {
  using namespace option;
  using O = Options;
  constexpr Range or_derived = {.low = 1, .high = widths.high, .or_zero = true};
  return {
      number("layers", &O::layers, depths, "blocks",
             {.required = true, .peers = {"num_hidden_layers", "n_layers", "n_layer"}}),
      number("heads", &O::heads, widths, "attention heads of queries",
             {.required = true, .peers = {"num_attention_heads", "n_heads", "n_head"}}),
      number("kv_heads", &O::kv_heads, or_derived, "heads of keys and values, which divide heads; 0: as many",
             {.keeps_weights = true, .peers = {"num_key_value_heads", "n_kv_heads"}}),
      number("channels", &O::channels, widths, "width of the embedding",
             {.required = true, .peers = {"hidden_size", "dim", "n_embd", "d_model"}}),
      number("head_width", &O::head_width, or_derived, "width of a head; 0: channels / heads",
             {.keeps_weights = true, .peers = {"head_dim"}}),  // shapes tell both
      number("hidden", &O::hidden, widths, "width between the layers of a block's SwiGLU",
             {.required = true, .peers = {"intermediate_size", "hidden_dim", "ffn_dim"}}),
      number("context", &O::context, widths, "length of a sample, in tokens",
             {.required = true,
              .keeps_weights = true,
              .peers = {"max_position_embeddings", "block_size", "seq_len", "max_seq_len"}}),
      number("vocab", &O::vocab, widths, "size of the vocabulary",
             {.required = true, .peers = {"vocab_size"}}),
      flag("tied", &O::tied, "the embedding is also the head", {.peers = {"tie_word_embeddings"}}),
      flag("qkv_bias", &O::qkv_bias, "queries, keys and values have biases (Qwen 2)",
           {.peers = {"attention_bias"}}),
      flag("qk_norm", &O::qk_norm, "RMS norms of each head's queries and keys (Qwen 3)",
           {.peers = {"use_qk_norm"}}),
      number("norm_eps", &O::norm_eps, Range::above(0, 1), "added to the mean square in the norms",
             {.peers = {"rms_norm_eps"}}),
      number("rope_base", &O::rope_base, Range::above(0, 1e38),
             "base of the rotary positions' angles; larger for longer texts", {.peers = {"rope_theta"}}),
      number("rope_factor", &O::rope_factor, Range::from(1, 1e6),
             "slower rotations, for texts longer than those of the first training (Llama 3.1); 1: none"),
      number("rope_low", &O::rope_low, Range::above(0, 1e6),
             "pairs that turn less often in rope_context positions are rope_factor times slower",
             {.peers = {"low_freq_factor"}}),
      number("rope_high", &O::rope_high, Range::above(0, 1e6),
             "pairs that turn more often are not slower; those between by a mean",
             {.peers = {"high_freq_factor"}}),
      number("rope_context", &O::rope_context, widths, "see rope_low",
             {.unit = "tokens", .peers = {"original_max_position_embeddings"}}),
      recompute_option(&O::recompute),
  };
}

void Llama::Options::check() const {
  if (head_width == 0 && heads > 0 && channels % heads != 0)
    throw Misfit("heads", fmt::format("{} does not divide channels = {}; set head_width", heads, channels));
  if (heads > 0 && heads % key_heads() != 0)
    throw Misfit("kv_heads", fmt::format("{} does not divide heads = {}", kv_heads, heads));
  if (heads > 0 && width_of_head() % 2 != 0)
    throw Misfit("head_width", fmt::format("is {}; rotary positions need an even number", width_of_head()));
  if (rope_low >= rope_high) throw Misfit("rope_low", "must be below rope_high");
}

Llama::Block::Block(nn::Module& parent, std::string_view name, const Options& o)
    : Layer(parent, name),
      heads_(static_cast<int>(o.heads)),
      key_heads_(o.key_heads()),
      width_(o.width_of_head()),
      rotary_{.base = static_cast<float>(o.rope_base),
              .scaling = {.factor = static_cast<float>(o.rope_factor),
                          .low = static_cast<float>(o.rope_low),
                          .high = static_cast<float>(o.rope_high),
                          .context = static_cast<float>(o.rope_context)},
              .time_first = true},
      input_layernorm_(*this, "input_layernorm", o.channels, static_cast<float>(o.norm_eps)),
      q_proj_(*this, "self_attn.q_proj", o.channels, heads_ * width_, o.qkv_bias),
      k_proj_(*this, "self_attn.k_proj", o.channels, key_heads_ * width_, o.qkv_bias),
      v_proj_(*this, "self_attn.v_proj", o.channels, key_heads_ * width_, o.qkv_bias),
      o_proj_(*this, "self_attn.o_proj", heads_ * width_, o.channels, false),
      post_attention_layernorm_(*this, "post_attention_layernorm", o.channels,
                                static_cast<float>(o.norm_eps)),
      gate_proj_(*this, "mlp.gate_proj", o.channels, o.hidden, false),
      up_proj_(*this, "mlp.up_proj", o.channels, o.hidden, false),
      down_proj_(*this, "mlp.down_proj", o.hidden, o.channels, false) {
  if (!o.qk_norm) return;
  q_norm_.emplace(*this, "self_attn.q_norm", width_, static_cast<float>(o.norm_eps));
  k_norm_.emplace(*this, "self_attn.k_norm", width_, static_cast<float>(o.norm_eps));
}

Var Llama::Block::positioned(const Var& x, std::int64_t heads, std::optional<nn::RMSNorm>& norm,
                             const Tensor& positions) const {
  const Shape joined = x.shape();
  const Var apart = reshape(x, {joined[0], joined[1], heads, width_});
  RotaryOptions how = rotary_;
  how.positions = positions;
  return reshape(rotary(norm ? (*norm)(apart) : apart, how), joined);
}

Var Llama::Block::forward(const Var& x, const Tensor& positions) {
  const Var h = input_layernorm_(x);
  const Var q = positioned(q_proj_(h), heads_, q_norm_, positions),
            k = positioned(k_proj_(h), key_heads_, k_norm_, positions);
  const Var sum = x + o_proj_(attention(q, k, v_proj_(h), heads_, true, positions));
  const Var s = post_attention_layernorm_(sum);
  return sum + down_proj_(swiglu(gate_proj_(s), up_proj_(s)));
}

Llama::Llama(const Options& o, std::uint64_t seed)
    : Model(seed),
      context_(checked(o).context),
      recompute_(o.recompute),
      embed_tokens_(*this, "model.embed_tokens", o.vocab, o.channels),
      blocks_(*this, "model.layers"),
      norm_(*this, "model.norm", o.channels, static_cast<float>(o.norm_eps)) {
  for (std::int64_t i = 0; i < o.layers; ++i) blocks_.emplace_back(o);
  if (!o.tied) {
    lm_head_.emplace(*this, "lm_head", o.channels, o.vocab, false);
    lm_head_->mark_as_head();
  }
  const float projection = 0.02f / std::sqrt(2 * static_cast<float>(o.layers));
  for (Param* const param : state().params) {
    const bool joins = param->name.ends_with("o_proj.weight") || param->name.ends_with("down_proj.weight");
    if (param->value.shape().rank() == 2)
      initialize(*param, nn::Init::normal(joins ? projection : 0.02f), seed);
    else if (param->name.ends_with(".bias"))
      initialize(*param, nn::Init::constant(0), seed);
  }
}

void Llama::check_input(const Shape& x) const {
  if (x.rank() == 2 && x[1] <= context_) return;
  throw DataError(
      "a batch of shape {} does not fit the llama's [batch, time] with time <= {} (model.context)",
      to_string(x), context_);
}

Var Llama::forward(Tape& tape, const Batch& batch) {
  const Head last = *head(tape, batch);
  return linear(last.x, last.weight);
}

std::optional<Model::Head> Llama::head(Tape& tape, const Batch& batch) {
  check_input(batch["x"].shape());
  const Tensor positions = positions_in(batch);
  Var h = embed_tokens_(tape, batch["x"]);
  for (Block& block : blocks_)
    h = recompute_ ? recomputed(tape, [&block, h, positions] { return block(h, positions); })
                   : block(h, positions);
  return Head{norm_(h), tape.weight(lm_head_ ? lm_head_->weight : embed_tokens_.weight)};
}

namespace {

/// A kind of such models in Hugging Face's library: its model_type is `type`.
struct Kind {
  const char *type, *architecture;
  bool qkv_bias, qk_norm;
};
constexpr Kind kinds[] = {{"llama", "LlamaForCausalLM", false, false},
                          {"qwen2", "Qwen2ForCausalLM", true, false},
                          {"qwen3", "Qwen3ForCausalLM", false, true}};

/// Keys of config.json whose numbers are options.
constexpr std::pair<const char*, const char*> number_keys[] = {{"num_hidden_layers", "layers"},
                                                               {"num_attention_heads", "heads"},
                                                               {"num_key_value_heads", "kv_heads"},
                                                               {"hidden_size", "channels"},
                                                               {"head_dim", "head_width"},
                                                               {"intermediate_size", "hidden"},
                                                               {"max_position_embeddings", "context"},
                                                               {"vocab_size", "vocab"}};

constexpr int all_slower_low = 999'999, all_slower_high = 1'000'000;  // of rope_type linear

/// Source: transformers/models/{llama,qwen2,qwen3}/configuration_*.py and modeling_rope_utils.py.
std::map<std::string, std::string> llama_options(std::string_view text) {
  const json config = json::parse(text);
  const auto refuse = [](const std::string& key, const json& value, const char* ours) {
    throw UsageError("{} is {}: {}", key, json_text(value), ours);
  };
  std::map<std::string, std::string> options;
  const auto read = [&](const json& object, const char* key, const char* option) {
    const json value = object.value(key, json());
    if (value.is_null()) return false;
    if (!value.is_number() && !value.is_boolean()) refuse(key, value, "must be a number");
    options[option] = json_text(value);
    return true;
  };
  const auto require = [&](const char* key, const json& only, const char* ours) {
    const json value = config.value(key, json());
    if (!value.is_null() && value != only) refuse(key, value, ours);
  };
  const json type = config.value("model_type", json("llama"));
  const auto* const kind = std::ranges::find_if(kinds, [&](const Kind& of) { return type == of.type; });
  if (kind == std::end(kinds)) refuse("model_type", type, "a llama takes llama, qwen2 and qwen3");
  for (const auto& [key, option] : number_keys) read(config, key, option);
  if (!read(config, "tie_word_embeddings", "tied")) options["tied"] = "false";
  if (!read(config, "rms_norm_eps", "norm_eps")) options["norm_eps"] = "1e-06";
  options["qkv_bias"] = kind->qkv_bias ? "true" : "false";
  options["qk_norm"] = kind->qk_norm ? "true" : "false";
  require("hidden_act", "silu", "a llama has silu");
  require("attention_bias", false, "a llama has biases of queries, keys and values alone, as Qwen 2");
  require("mlp_bias", false, "a llama's SwiGLU has no biases");
  require("use_sliding_window", false, "a llama attends to the whole text");

  const auto first_of = [](const json& object, const char* key, const char* other) {
    const json value = object.value(key, json());
    return value.is_null() ? object.value(other, json()) : value;
  };
  json rope = first_of(config, "rope_parameters", "rope_scaling");
  if (rope.is_null()) rope = json::object();
  if (!rope.is_object()) refuse("rope_parameters", rope, "must be an object");
  if (!read(rope, "rope_theta", "rope_base") && !read(config, "rope_theta", "rope_base"))
    options["rope_base"] = "10000";
  const json scaling = first_of(rope, "rope_type", "type");
  if (!read(rope, "factor", "rope_factor")) options["rope_factor"] = "1";
  if ((scaling == "linear" || scaling == "llama3") && !rope.contains("factor"))
    refuse("rope_parameters", rope, "lacks factor");
  if (scaling == "linear") {
    options["rope_low"] = std::to_string(all_slower_low);
    options["rope_high"] = std::to_string(all_slower_high);
  } else if (scaling == "llama3") {
    read(rope, "low_freq_factor", "rope_low");
    read(rope, "high_freq_factor", "rope_high");
    read(rope, "original_max_position_embeddings", "rope_context");
  } else if (!scaling.is_null() && scaling != "default") {
    refuse("rope_type", scaling, "a llama takes default, linear and llama3");
  }
  return options;
}

/// The inverse of llama_options().
std::string llama_config(const ForeignWeights::OptionText& option) {
  const auto number = [&](const char* name) { return json::parse(option(name)); };
  const bool qk_norm = option("qk_norm") == "true", qkv_bias = option("qkv_bias") == "true";
  const auto* const kind = std::ranges::find_if(
      kinds, [&](const Kind& of) { return of.qkv_bias == qkv_bias && of.qk_norm == qk_norm; });
  if (kind == std::end(kinds))
    throw UsageError("no model of Hugging Face has both model.qkv_bias and model.qk_norm");
  const std::int64_t heads = number("heads"), kv_heads = number("kv_heads"), width = number("head_width");
  json config = {{"model_type", kind->type},
                 {"architectures", {kind->architecture}},
                 {"tie_word_embeddings", option("tied") == "true"},
                 {"rms_norm_eps", number("norm_eps")},
                 {"rope_theta", number("rope_base")},
                 {"hidden_act", "silu"},
                 {"attention_bias", false},
                 {"use_cache", true}};
  for (const auto& [key, name] : number_keys) config[key] = number(name);
  if (kv_heads == 0) config["num_key_value_heads"] = heads;
  if (width == 0) config["head_dim"] = number("channels").get<std::int64_t>() / heads;
  if (number("rope_factor") != 1)
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", number("rope_factor")},
                              {"low_freq_factor", number("rope_low")},
                              {"high_freq_factor", number("rope_high")},
                              {"original_max_position_embeddings", number("rope_context")}};
  return json_text(config, 2);
}

}  // namespace

const ForeignWeights Llama::foreign{.layout = "huggingface",
                                    .model = "llama",
                                    .program = "Hugging Face's Llama and Qwen",
                                    .prefix = "model.",
                                    .blocks = "model.layers.",
                                    .marker = "self_attn.q_proj.weight",
                                    .masks = {{.name = "self_attn.rotary_emb.inv_freq", .word = "inv_freq"}},
                                    .head = "lm_head.weight",
                                    .embedding = "model.embed_tokens.weight",
                                    .options_of = llama_options,
                                    .config_of = llama_config};

void register_llama(Registry& registry) { registry.add<Llama>("llama"); }

}  // namespace lockstep::models
