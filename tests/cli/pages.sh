#!/usr/bin/env bash
# pages.sh files|browser: the pages of report, bench --html and inspect --html. files: they are there, need no network, and refuse what
# they should. browser: headless Chromium opens those of digits, gpt-text, a sweep of 50 runs, a run with three faults and one of 100,000
# steps with hundreds of pictures, at desktop and phone width, light and dark, and prints them (tests/support/browser.py). SHOTS: a folder
# for what it sees.
source "$(dirname "$0")/../support/cli.sh"

kind=$1
if [ "$kind" = browser ] && ! command -v chromium chromium-browser google-chrome >/dev/null; then
  echo "no Chromium is installed (package chromium): pages are not opened"
  exit 77
fi
digits digits.h5
mkdir pages
{
  small_mlp 'steps = 60' 'global_batch = 32' 'shards = 2' 'eval_every = 20' 'seed = 1'
  printf '%s\n' '[ema]' 'rates = 0.9 0.99' '[log]' 'every = 1' 'trace = trace.json' '[checkpoint]' 'every = 30'
} >digits.ini
sed -i 's/^train = digits.h5/train = digits.h5\neval_fraction = 0.2/' digits.ini
ranks 2 train digits.ini --run digits >log 2>&1 || fail "digits: $(tail -n 3 log)"

# --- bench and inspect ---------------------------------------------------------------------------------------------------
bench() { ranks "$@" >out.log 2>err.log || fail "$*: $(cat err.log)"; }
bench 1 bench allreduce --bytes 65536 1048576 --json
cp out.log alone.json
bench 2 bench allreduce --bytes 65536 1048576 4194304 --html pages/allreduce.html --with alone.json
[ "$(tail -n 1 out.log)" = pages/allreduce.html ] || fail "the name of the page is not printed: $(cat out.log)"
bench 1 bench step --workload mlp-wide --steps 2 --json --html pages/step-alone.html
python3 -c 'import json; json.load(open("out.log"))' || fail "--json with --html is no JSON document: $(cat out.log)"
cp out.log step.json
bench 2 bench step --workload mlp-wide --steps 3 --html pages/step.html --with step.json
bench 1 bench step --workload mlp-wide --steps 2 --profile --html pages/profile.html
bench 2 bench overlap --workload mlp-wide --steps 2 --bucket-mb 1 4 --html pages/overlap.html
bench 1 bench checkpoint --mib 4 --rounds 1 --workload mlp-wide --html pages/checkpoint.html
bench 1 inspect digits/checkpoints/latest --html pages/inspect.html
"$LOCKSTEP" inspect digits/checkpoints/latest --json >inspect.json
python3 - <<'PY' || fail "pages"
import glob, html, json, re
pages = {path[6:-5]: open(path).read() for path in glob.glob("pages/*.html")}
assert len(pages) == 7, sorted(pages)
for name, page in pages.items():
    assert len(page.encode()) < 2_000_000, name
    assert not re.search(r'(?:src|href|url)\s*[=(]\s*["\']?\s*(?:https?:)?//', page), f"{name} needs a network"
    assert "Written by lockstep" in page and ("<h2>Environment</h2>" in page or "<h2>Provenance</h2>" in page), name
def has(name, *texts):
    for text in texts:
        assert text in pages[name], f"{name} lacks {text}"
has("allreduce", ">Bandwidth</b>", ">Time</b>", "Bandwidth over ranks", 'data-label="Lockstep, 1 rank"', 'data-label="MPI_Allreduce, 2 ranks"',
    "size of the vector (log scale)", ">64 KiB</td>", "every bit right", 'data-xkind="bytes"')
has("step", "<h2>Scaling</h2>", 'data-label="measured"', ">Step time</b>", "efficiency", "samples/s")
assert "<h2>Scaling</h2>" not in pages["step-alone"]
has("profile", "<h2>Operations</h2>", "GFLOP/s", "linear")
has("overlap", ">per_parameter</span>", ">flat</span>", ">overlapped 1 MiB</span>", "A step of mode overlapped 4 MiB", "critical path", "bucket 0 ·")
has("checkpoint", "synchronous save", "until it returns", "while saving", "MB/s")
found = json.load(open("inspect.json"))
for tensor in found["tensors"]:
    assert f">{html.escape(tensor['name'])}</td>" in pages["inspect"], tensor
for group in found["groups"]:
    assert f">{group['path']}</td>" in pages["inspect"], group
for name, value in found["provenance"].items():
    assert not value or f"<td>{name}</td><td class=\"v\">{html.escape(value)}</td>" in pages["inspect"], name
assert "rate = 0.9, updates = 60" in pages["inspect"]
# The bandwidth on the page is what the table says.
row = re.search(r'data-v="65536">64 KiB</td><td class="n" data-v="([^"]*)">[^<]*</td>.*?data-v="([^"]*)">[^<]*</td></tr>', pages["allreduce"])
assert abs(65536e-6 / float(row[1]) - float(row[2])) < 1e-6 * float(row[2]), row[0]
PY

if [ "$kind" = files ]; then
  # A tensor whose values are not what was saved.
  cp "$(readlink -f digits/checkpoints/latest)" damaged.h5
  printf '\377\376' | dd of=damaged.h5 bs=1 seek="$(($(stat -c %s damaged.h5) / 2))" conv=notrunc status=none
  "$LOCKSTEP" inspect damaged.h5 --html damaged.html >/dev/null 2>err.log || fail "inspect of a damaged file: $(cat err.log)"
  grep -q '<h2>Damage</h2>' damaged.html || fail "the page does not tell of the damage"
  grep -q '>WRONG</td>' damaged.html || fail "the table does not show the damage"

  echo mine >mine.html
  echo '{"rows": 1}' >rows.json
  for count in 1 2; do
    refused 2 'is not a page' ranks "$count" bench allreduce --bytes 65536 --html mine.html
    refused 2 'nowhere' ranks "$count" inspect digits/checkpoints/latest --html nowhere/page.html
    refused 3 'mine.html' ranks "$count" bench step --workload mlp-wide --steps 1 --html page.html --with mine.html
    refused 3 'absent.json' ranks "$count" bench allreduce --bytes 65536 --html page.html --with absent.json
    refused 3 'with' ranks "$count" bench allreduce --bytes 65536 --html page.html --with rows.json
    refused 2 'only the page of --html' ranks "$count" bench allreduce --bytes 65536 --with alone.json
  done
  [ "$(cat mine.html)" = mine ] || fail "another file was replaced"
  finish
  exit
fi

# --- runs, in the browser ------------------------------------------------------------------------------------------------
words text.h5
cat >gpt.ini <<'INI'
[model]
name = gpt
layers = 1
heads = 2
channels = 32
context = 32
vocab = 256
[data]
train = text.h5
eval_fraction = 0.1
[train]
steps = 30
global_batch = 8
shards = 2
seed = 1
eval_every = 10
[optimizer]
name = adamw
lr = 3e-3
[log]
every = 1
INI
"$LOCKSTEP" train gpt.ini --run gpt >log 2>&1 || fail "gpt: $(tail -n 3 log)"
python3 - <<'PY' || fail "made-up runs"
import json, math, os, random, struct, time, zlib
random.seed(1)
def picture(width, height, seed):
    rows = b"".join(b"\0" + bytes((x * y * seed + random.randrange(90)) % 256 for x in range(width)) for y in range(height))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
stamp = lambda step: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1.79e9 + step / 50))
def line(step, steps, lr, every):
    loss = 2.3 * math.exp(-step / steps * 4) + 0.1 + lr + random.gauss(0, 0.02)
    values = {"step": step, "loss": loss, "lr": lr * (1 - step / steps), "grad_norm": abs(random.gauss(1, 0.2)), "samples_per_second": random.gauss(3000, 100),
              "samples": step * 64, "step_ms": 20 + abs(random.gauss(0, 2)), "data_wait_ms": abs(random.gauss(0, 0.1)), "exposed_comm_ms": random.gauss(1, 0.1),
              "log_ms": 0.05, "memory_mib": 512, "rank_compute_ms": [random.gauss(17 + r, 0.2) for r in range(4)], "slowest_rank": 3, "time": stamp(step)}
    if step % every == 0:
        values.update({"eval_loss": loss + 0.05, "eval_accuracy": 1 - loss / 3, "eval_ema_0.99_loss": loss + 0.02, "eval_ema_0.99_accuracy": 1 - loss / 3.1})
    return values
def start(step, word="new", ranks=4): return {"step": step, "start": word, "ranks": ranks, "nodes": 2, "version": "0.1.0", "time": stamp(step)}
def run(name, lines, steps, lr):
    os.makedirs(name)
    open(name + "/metrics.jsonl", "w").write("".join(json.dumps(one) + "\n" for one in lines))
    open(name + "/config.ini", "w").write(f"[model]\nname = mlp\n[train]\nsteps = {steps}\nglobal_batch = 64\n[optimizer]\nname = adamw\nlr = {lr:g}\n")
run("long", [start(0)] + [line(step, 100_000, 1e-3, 1000) for step in range(1, 100_001)], 100_000, 1e-3)
os.makedirs("long/samples")
for s in range(300): open(f"long/samples/step-{s * 333:09d}.png", "wb").write(picture(96, 96, s + 1))
for i in range(50):
    lr = 10 ** random.uniform(-4, -1)
    run(f"sweep/lr-{i:02d}", [start(0)] + [line(step, 2000, lr, 100) for step in range(10, 2001, 10)], 2000, lr)
run("narrow", [start(0)] + [{**line(step, 50, 1e-3, 10), "exposed_comm_ms": 0.0012345 + random.uniform(0, 1e-7)} for step in range(1, 51)],
    50, 1e-3)  # long labels of an axis
event = lambda step, what, note: {"step": step, "event": what, "note": note, "time": stamp(step)}
run("faults", [start(0)] + [line(step, 3000, 1e-3, 250) for step in range(1, 401)]  # a slow rank, a preemption, a kill
    + [event(400, "slow_rank", "rank 3 (node-b) takes 31.2 ms a step, 1.6 times the median")]
    + [line(step, 3000, 1e-3, 250) for step in range(401, 900)] + [event(899, "preempted", "preempted after step 899"), start(899, "resumed")]
    + [line(step, 3000, 1e-3, 250) for step in range(900, 1800)] + [start(1799, "resumed", 2)]
    + [line(step, 3000, 1e-3, 250) for step in range(1800, 3001)], 3000, 1e-3)
PY
for run in digits gpt long narrow faults; do
  "$LOCKSTEP" report "$run" --out "pages/$run.html" >/dev/null 2>err.log || fail "report $run: $(cat err.log)"
done
"$LOCKSTEP" report sweep/* --out pages/sweep.html >/dev/null 2>err.log || fail "report of a sweep: $(cat err.log)"
for page in pages/*.html; do
  [ "$(stat -c %s "$page")" -lt 2000000 ] || fail "$page has $(stat -c %s "$page") bytes"
done
shots=()
[ -z "${SHOTS:-}" ] || { mkdir -p "$SHOTS" && shots=(--shots "$SHOTS"); }
timeout 700 python3 "$LOCKSTEP_SOURCE_DIR/tests/support/browser.py" "${shots[@]}" pages/*.html 2>seen.log || fail "in the browser"
cat seen.log
finish
