# The table of the README under another name, and a text.
cp share/data/iris.csv iris.csv
head -c 5000 share/data/words.txt >book.txt
mkdir -p corpus more gpt2
cp book.txt corpus/ && cp book.txt more/
printf '{"text": "a tale"}\n' | gzip >docs.jsonl.gz
python3 - <<'EOF'
import json

bytes_of = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
letters = [chr(b) for b in bytes_of] + [chr(256 + i) for i in range(256 - len(bytes_of))]
json.dump({letter: i for i, letter in enumerate(letters)} | {"<|endoftext|>": 256}, open("gpt2/vocab.json", "w"))
open("gpt2/merges.txt", "w").write("#version: 0.2\n")
EOF
