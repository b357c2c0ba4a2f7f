# A folder of Hugging Face, as small as it can be, and texts.
mkdir mine texts
split -n l/8 share/data/words.txt texts/part-
cp texts/part-aa texts/part-ab mine
lockstep prepare text texts --train-tokenizer 300 --out first.h5
cat >first.ini <<'INI'
[model]
name = llama
layers = 1
heads = 2
channels = 16
hidden = 32
context = 64
vocab = 301
[data]
train = first.h5
[train]
steps = 1
global_batch = 1
INI
lockstep train first.ini
lockstep convert runs/first/checkpoints/latest SmolLM2-135M --layout huggingface
