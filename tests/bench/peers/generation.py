#!/usr/bin/env python3
"""Time the generation of texts on one thread beside Hugging Face's transformers, in alternating rounds.

Usage: generation.py LOCKSTEP [--rounds N] [--models 10M,124M]      (needs torch and transformers; of PyPI)

Prints for GPT-2s of random weights: milliseconds a token of both, medians of the rounds, and their ratio; bf16 weights
beside float32; the last 64 tokens of a context of 1024 beside the first 64; the time to the first token of a prompt of 512;
and what reading the weights would take at the bandwidth of a copy. transformers runs at its best: a loop over its cache
in inference mode, not generate(), whose bookkeeping costs more.
"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel

torch.set_num_threads(1)
TOKENS = 64


def copy_gb_s():
    source, target = np.ones(64 << 20, np.float32), np.empty(64 << 20, np.float32)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - begin)
    return 2 * source.nbytes / min(times) / 1e9


def peer(model, prompt, tokens):
    """Seconds to the first token, and of each one after it."""
    with torch.inference_mode():
        begin = time.perf_counter()
        out = model(torch.full((1, prompt), 97), use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        first = time.perf_counter()
        for _ in range(tokens - 1):
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
            token = out.logits[:, -1].argmax(-1, keepdim=True)
        return first - begin, (time.perf_counter() - first) / (tokens - 1)


def ours(lockstep, file, prompt, tokens, *more):
    command = [lockstep, "generate", file, "--tokens", str(tokens), "--temperature", "0", "--prompt", "a" * prompt, "--device", "cpu"]
    err = subprocess.run([*command, *more], capture_output=True, check=True).stderr.decode()
    first, rate = re.search(r"the first after ([\d.]+) s, then ([\d.e+]+) tokens/s", err).groups()
    return float(first), 1 / float(rate)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lockstep")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default="10M,124M")
    args = parser.parse_args()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, copies at {copy_gb_s():.1f} GB/s")
    sizes = {"10M": dict(n_embd=384, n_layer=6, n_head=6, vocab_size=256), "124M": dict()}
    with tempfile.TemporaryDirectory() as temporary:
        for name in args.models.split(","):
            model = GPT2LMHeadModel(GPT2Config(**sizes[name])).eval()
            folder, file, ini = (str(pathlib.Path(temporary) / part) for part in (name, name + ".h5", name + ".ini"))
            model.save_pretrained(folder)
            bytes_only = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
            bytes_only.pre_tokenizer, bytes_only.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
            bytes_only.save(folder + "/tokenizer.json")  # a token a byte, so that prompts have as many tokens as letters
            pathlib.Path(ini).write_text("[model]\nname = gpt\n[train]\nsteps = 1\nglobal_batch = 1\n")
            subprocess.run([args.lockstep, "convert", folder, file, "--config", ini], check=True, capture_output=True)
            weights = sum(p.numel() for p in model.parameters()) * 4
            runs = dict(peer=[], ours=[], bf16=[], late=[], first=[], peer_first=[])
            for _ in range(args.rounds):
                runs["peer"].append(peer(model, 8, TOKENS)[1])
                runs["ours"].append(ours(args.lockstep, file, 8, TOKENS)[1])
                runs["bf16"].append(ours(args.lockstep, file, 8, TOKENS, "--precision", "bf16")[1])
                runs["late"].append(ours(args.lockstep, file, 1024 - TOKENS, TOKENS)[1])
                runs["first"].append(ours(args.lockstep, file, 512, 2)[0])
                runs["peer_first"].append(peer(model, 512, 2)[0])
            median = {key: statistics.median(values) for key, values in runs.items()}
            of = lambda a, b: statistics.median(x / y for x, y in zip(runs[a], runs[b]))
            bandwidth = weights / (copy_gb_s() * 1e9)
            print(f"{name}: {median['ours'] * 1e3:.2f} ms a token, transformers {median['peer'] * 1e3:.2f}: {of('peer', 'ours'):.2f} times; "
                  f"weights at the copy's bandwidth {bandwidth * 1e3:.2f} ms: {bandwidth / median['ours']:.2f} of it; "
                  f"bf16 {of('ours', 'bf16'):.2f} times; last {TOKENS} of 1024: {of('late', 'ours'):.2f} of the first; "
                  f"first token of a prompt of 512: {median['first']:.2f} s, transformers {median['peer_first']:.2f} s")


if __name__ == "__main__":
    main()
