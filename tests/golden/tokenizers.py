#!/usr/bin/env python3
"""Write reference cases computed by Hugging Face's tokenizers: small tokenizers of several kinds, and ids of texts.

Usage: tokenizers.py OUTDIR      (needs tokenizers from PyPI)

tokenizers.json  {"corpus": text that the tokenizers learn from, "texts": [text],
                  "kinds": [{"name", "tokenizer": tokenizer.json, "ids": [ids of texts[i] as plain text],
                             "prompts": [ids of texts[i] with special tokens]}]}
"gpt2" is as BpeTrainer leaves it, so `prepare text --train-tokenizer` must learn the same.
"""
import json
import pathlib
import random
import sys

# The module has the name of this file: it is not in this folder.
sys.path = [path for path in sys.path if pathlib.Path(path or ".").resolve() != pathlib.Path(__file__).resolve().parent]
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
TEXTS = ["", " ", "\n", "a", "Hello world", "  Hello   world  \n\n\nnew\tline \r\n end   ", "it's we'll THEY'RE I'Ve can'T 'x",
         "for (int i = 0; i < 100; ++i) {\n\t\treturn x[i]->y;  // done\n}\n", "1 12 123 1234 12345 3.14159 1e-10 \u00b2\u2460\u0663",
         "caf\u00e9 cafe\u0301 \u1e9b\u0323 \uac00 \u1100\u1161\u11a8 \ufb01 \u212b A\u030a q\u0323\u0307 q\u0307\u0323",
         "\u0421\u044a\u0435\u0448\u044c \u0436\u0435 \u0435\u0449\u0451 \u044d\u0442\u0438\u0445 \u043c\u044f\u0433\u043a\u0438\u0445 \u0431\u0443\u043b\u043e\u043a",
         "\u6211\u80fd\u541e\u4e0b\u73bb\u7483\u800c\u4e0d\u4f24\u8eab\u4f53\u3002\u79c1\u306f\u30ac\u30e9\u30b9\u3092\u98df\u3079\u3089\u308c\u307e\u3059\u3002",
         "\u0627\u0644\u0644\u063a\u0629 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea \u0939\u093f\u0928\u094d\u0926\u0940 \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22",
         "\U0001f600\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f", "\x00\x01\x7f\x85\u00a0\u1680\u180e\u2003\u2028\u2029\u202f\u3000\ufeff",
         "<|endoftext|>", "a<|end_of_text|>b <|endoftext|>\n<tool_call>x</tool_call> <|endoftext|", "<tool_call>\u0338", "\u017fs'\u017f K'\u212a"]


def corpus():
    """Random sentences, so that there are equally frequent pairs, and of every kind of character."""
    draw = random.Random(1)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(400)]
    text = ""
    for _ in range(400):
        line = [draw.choice(words) for _ in range(draw.randint(3, 12))]
        line.append(str(draw.randint(0, 99999)))
        text += " ".join(line).capitalize() + draw.choice([".", "!", "?", "'s", ";"]) + draw.choice(["\n", "\n\n", " ", "\t"])
    return text + "\n".join(TEXTS)


def make(kind, text):
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    special = ["<|endoftext|>"]
    if kind in ("gpt2", "prefix"):
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "prefix")
    if kind == "smollm":
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if kind in ("llama3", "qwen2"):
        pattern = WORDS.replace("{DIGITS}", "{1,3}" if kind == "llama3" else "")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), to_bytes])
    if kind == "llama3":
        special = ["<|begin_of_text|>", "<|end_of_text|>"]
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    if kind == "prefix":
        tokenizer.normalizer = normalizers.NFKC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    if kind == "qwen2":
        tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    return tokenizer


def main():
    text, kinds = corpus(), []
    for kind in ("gpt2", "llama3", "qwen2", "smollm", "prefix"):
        tokenizer = make(kind, text)
        texts = TEXTS + [text]
        tokenizer.encode_special_tokens = True
        ids = [tokenizer.encode(one, add_special_tokens=False).ids for one in texts]
        tokenizer.encode_special_tokens = False
        prompts = [tokenizer.encode(one, add_special_tokens=False).ids for one in TEXTS]
        kinds.append({"name": kind, "tokenizer": json.loads(tokenizer.to_str()), "ids": ids[:-1], "prompts": prompts})
        if kind != "gpt2":
            kinds[-1]["ids"].append(ids[-1][:2000])
    out = pathlib.Path(sys.argv[1]) / "tokenizers.json"
    out.write_text(json.dumps({"corpus": text, "texts": TEXTS, "kinds": kinds}, ensure_ascii=True, separators=(",", ":")) + "\n")


main()
