#!/usr/bin/env python3
"""Write reference cases by Hugging Face's transformers: small language models of random weights.

Usage: language_models.py OUTDIR [--seed N]      (needs torch, transformers and h5py; of PyPI)

language_models/KIND/  config.json and model.safetensors, as save_pretrained() writes them
language_models.h5     /KIND  case={"model": "gpt" or "llama", "lr": ..., "transformers": version}
                       x[BATCH, TIME] tokens   logits[BATCH, TIME, VOCABULARY] of x
                       greedy[64]: what follows x[0, :8]
                       loss[20]: AdamW (betas 0.9 0.95, no decay) on x[:, :-1] -> x[:, 1:]
Norms and biases are random, too, so that they matter. Floats are float32, integers int64, on one thread of the CPU.
"""
import argparse
import json
import pathlib

import h5py
import numpy as np
import torch
import transformers
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)

torch.set_num_threads(1)
VOCABULARY, CONTEXT = 61, 96


def models():
    common = dict(hidden_size=24, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                  vocab_size=VOCABULARY, max_position_embeddings=CONTEXT)
    llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
    yield "gpt2", "gpt", GPT2LMHeadModel(GPT2Config(n_embd=24, n_layer=2, n_head=3, n_positions=CONTEXT, vocab_size=VOCABULARY,
                                                    resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    yield "llama2", "llama", LlamaForCausalLM(LlamaConfig(**common | dict(num_key_value_heads=4)))
    yield "llama3", "llama", LlamaForCausalLM(LlamaConfig(**common, rope_theta=500000.0, rope_scaling=llama3, rms_norm_eps=1e-5))
    yield "linear", "llama", LlamaForCausalLM(LlamaConfig(**common, rope_scaling=dict(rope_type="linear", factor=2.0)))
    yield "smollm", "llama", LlamaForCausalLM(LlamaConfig(**common, tie_word_embeddings=True))
    yield "qwen2", "llama", Qwen2ForCausalLM(Qwen2Config(**common))
    yield "qwen3", "llama", Qwen3ForCausalLM(Qwen3Config(**common, head_dim=10, tie_word_embeddings=True))

    yield "gpt2_erf", "gpt", GPT2LMHeadModel(GPT2Config(n_embd=24, n_layer=2, n_head=3, n_positions=CONTEXT, vocab_size=VOCABULARY,
                                                        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, activation_function="gelu"))

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("outdir", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    with h5py.File(args.outdir / "language_models.h5", "w") as file:
        for kind, model_name, model in models():
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.dim() == 1 else 0.05))
            model.eval()
            model.save_pretrained(args.outdir / "language_models" / kind)
            (args.outdir / "language_models" / kind / "generation_config.json").unlink(missing_ok=True)
            group = file.create_group(kind)
            x = torch.randint(0, VOCABULARY, (3, 40))
            group["x"] = x.numpy()
            with torch.no_grad():
                group["logits"] = model(x).logits.numpy()
                text = x[:1, :8]
                for _ in range(64):  # without a cache: the definition
                    text = torch.cat([text, model(text).logits[:, -1].argmax(-1, keepdim=True)], 1)
                group["greedy"] = text[0, 8:].numpy()
            lr = 1e-3
            optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0)
            losses = []
            for _ in range(20):
                optimizer.zero_grad()
                logits = model(x[:, :-1]).logits
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            group["loss"] = np.array(losses, dtype=np.float64)
            group.attrs["case"] = json.dumps(dict(model=model_name, lr=lr, transformers=transformers.__version__))


if __name__ == "__main__":
    main()
