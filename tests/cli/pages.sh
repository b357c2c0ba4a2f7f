#!/usr/bin/env bash
# The pages of report, bench --html and inspect --html: they are there, need no network, hold what --json prints, and refuse what they
# should. Headless Chromium draws all of it, and opens those of digits, gpt-text, a sweep of 50 runs, a run with three faults and one of
# 100,000 steps with hundreds of pictures, at desktop and phone width, light and dark (tests/support/browser.py).
source "$(dirname "$0")/../support/cli.sh"

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
cp out.log sums-1.json
bench 2 bench allreduce --bytes 65536 1048576 4194304 --html pages/sums.html
[ "$(tail -n 1 out.log)" = pages/sums.html ] || fail "the name of the page is not printed: $(cat out.log)"
bench 2 bench allreduce --bytes 65536 1048576 4194304 --json --html pages/sums-2.html
cp out.log sums-2.json
bench 1 bench step --workload mlp-wide --steps 2 --json --html pages/step-1.html
cp out.log step-1.json
bench 2 bench step --workload mlp-wide --steps 3 --json --html pages/step-2.html
cp out.log step-2.json
bench 1 bench step --workload mlp-wide --steps 2 --profile --json --html pages/profile.html
cp out.log profile.json
bench 2 bench overlap --workload mlp-wide --steps 2 --bucket-mb 1 4 --json --html pages/overlap.html
cp out.log overlap.json
bench 1 bench checkpoint --mib 4 --rounds 1 --workload mlp-wide --json --html pages/checkpoint.html
cp out.log checkpoint.json
bench 1 inspect digits/checkpoints/latest --html pages/inspect.html
"$LOCKSTEP" inspect digits/checkpoints/latest --json >inspect.json
bench 1 report sums-1.json sums-2.json --out pages/sums-both.html
bench 1 report step-1.json step-2.json --out pages/step-both.html
bench 1 report profile.json overlap.json checkpoint.json --out pages/others.html
cp step-1.json alone.json
[ "$("$LOCKSTEP" report alone.json)" = report.html ] || fail "the page of a result has another name"
python3 - <<'PY' || fail "pages"
import glob, json, re
pages = {path[6:-5]: open(path).read() for path in glob.glob("pages/*.html")}
assert len(pages) == 11, sorted(pages)
documents = {}
for name, page in pages.items():
    assert len(page.encode()) < 2_000_000, name
    assert not re.search(r'(?:src|href|url)\s*[=(]\s*["\']?\s*(?:https?:)?//', page), f"{name} needs a network"
    documents[name] = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    titles = [section["title"] for section in documents[name]["sections"]]
    assert "Written by lockstep" in page and (len(titles) == 1 or {"Environment", "Provenance"} & set(titles)), (name, titles)
    if name != "inspect":  # what --json prints, no more and no less
        results = [part["results"] for part in documents[name]["sections"][0]["parts"]][0]
        for result in results:
            file = result.pop("file", name + ".json")
            assert name == "sums" or result == json.load(open(file)), (name, file)
    # Without a script: title and facts.
    shown = page.split("<script")[0]
    assert documents[name]["title"] in shown and "<noscript>" in shown, name
    assert all(fact in shown for fact, _ in documents[name].get("facts", [])), name
assert ["all bits correct", "yes"] in documents["sums"]["facts"]
def section(name, title): return [one for one in documents[name]["sections"] if one["title"] == title][0]["parts"]
assert [chart["title"] for chart in section("step-2", "Steps")[0]["charts"]["charts"]] == ["Step time", "Exposed communication"]
buckets = [part["bars"] for part in section("overlap", "Buckets")]
assert [one["title"] for one in buckets] == ["One step in mode overlapped 1 MiB", "One step in mode overlapped 4 MiB"]
assert buckets[0]["rows"][0] == "compute" and buckets[0]["rows"][1].startswith("bucket 0 · "), buckets[0]["rows"]
found = json.load(open("inspect.json"))
tensors = {row["name"]: row for row in section("inspect", "Tensors")[0]["rows"]}
for tensor in found["tensors"]:
    assert tensors[tensor["name"]] == {key: value for key, value in tensor.items() if key != "digest"}, tensor
sizes = {row["path"]: row["bytes"] for row in section("inspect", "Groups")[1]["rows"]}
for group in found["groups"]:
    assert sizes[group["path"]] == sum(t["bytes"] for t in found["tensors"] if t["name"].rsplit("/", 1)[0].strip("/") == group["path"].strip("/")), group
keys = dict(section("inspect", "Provenance")[0]["keys"])
for name, value in found["provenance"].items():
    assert not value or keys[name] == value, name
PY

# A tensor whose values are not what was saved.
cp "$(readlink -f digits/checkpoints/latest)" damaged.h5
printf '\377\376' | dd of=damaged.h5 bs=1 seek="$(($(stat -c %s damaged.h5) / 2))" conv=notrunc status=none
"$LOCKSTEP" inspect damaged.h5 --html damaged.html >/dev/null 2>err.log || fail "inspect of a damaged file: $(cat err.log)"
grep -q '"title":"Damage"' damaged.html || fail "the page does not tell of the damage"
grep -q '"digest_right":false' damaged.html || fail "the table does not show the damage"

echo mine >mine.html
echo '{"rows": 1}' >rows.json
cp mine.html mine.json
for count in 1 2; do
  refused 2 'is not a page' ranks "$count" bench allreduce --bytes 65536 --html mine.html
  refused 2 'nowhere' ranks "$count" inspect digits/checkpoints/latest --html nowhere/page.html
  refused 3 'rows.json: is not a result that lockstep bench --json printed' ranks "$count" report step-1.json rows.json
  refused 3 'mine.json: is not a result that lockstep bench --json printed' ranks "$count" report mine.json
  refused 3 'absent.json' ranks "$count" report absent.json
  refused 2 'digits: is a run; give runs or results of lockstep bench, not both' ranks "$count" report step-1.json digits
  refused 2 'unknown option --with' ranks "$count" bench step --html page.html --with step-1.json
done
[ "$(cat mine.html)" = mine ] || fail "another file was replaced"

if ! command -v chromium chromium-browser google-chrome >/dev/null; then
  echo "not checked: pages in a browser (no Chromium: package chromium)"
  finish
  exit
fi

# --- runs, in the browser ------------------------------------------------------------------------------------------------
words text.h5
small_gpt 'eval_fraction = 0.1' '[train]' 'steps = 30' 'global_batch = 8' 'shards = 2' 'eval_every = 10' '[optimizer]' 'lr = 3e-3' '[log]' 'every = 1' >gpt.ini
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
run("single", [start(0)] + [line(step, 50, 1e-3, 50) for step in range(1, 51)], 50, 1e-3)  # one evaluation
event = lambda step, what, note: {"step": step, "event": what, "note": note, "time": stamp(step)}
run("faults", [start(0)] + [line(step, 3000, 1e-3, 250) for step in range(1, 401)]  # a slow rank, a preemption, a kill
    + [event(400, "slow_rank", "rank 3 (node-b) takes 31.2 ms a step, 1.6 times the median")]
    + [line(step, 3000, 1e-3, 250) for step in range(401, 900)] + [event(899, "preempted", "preempted after step 899"), start(899, "resumed")]
    + [line(step, 3000, 1e-3, 250) for step in range(900, 1800)] + [start(1799, "resumed", 2)]
    + [line(step, 3000, 1e-3, 250) for step in range(1800, 3001)], 3000, 1e-3)
PY
for run in digits gpt long narrow single faults; do
  "$LOCKSTEP" report "$run" --out "pages/$run.html" >/dev/null 2>err.log || fail "report $run: $(cat err.log)"
done
"$LOCKSTEP" report sweep/* --out pages/sweep.html >/dev/null 2>err.log || fail "report of a sweep: $(cat err.log)"
"$LOCKSTEP" eval digits/checkpoints/latest --per-class --json >eval.json 2>err.log || fail "eval: $(cat err.log)"
"$LOCKSTEP" report digits eval.json --out pages/evaluated.html >/dev/null 2>err.log || fail "report with an evaluation: $(cat err.log)"
for page in pages/*.html; do
  [ "$(stat -c %s "$page")" -lt 2000000 ] || fail "$page has $(stat -c %s "$page") bytes"
done
mkdir drawn
timeout 700 python3 "$LOCKSTEP_SOURCE_DIR/tests/support/browser.py" drawn pages/*.html >seen.log 2>&1 || fail "in the browser: $(cat seen.log)"
python3 - <<'PY' || fail "what is drawn"
import glob, html, json, re
pages = {path[6:-5]: open(path).read() for path in glob.glob("drawn/*.html")}
def has(name, *texts):
    for text in texts:
        assert text in pages[name], f"{name} lacks {text}"
has("sums-both", ">Bandwidth</b>", ">Time</b>", "Bandwidth over ranks", 'data-label="Lockstep, 1 rank"', 'data-label="MPI_Allreduce, 2 ranks"',
    "size of the vector (log scale)", ">64 KiB</td>")
has("step-both", ">Throughput</b>", 'data-label="measured"', 'data-label="ideal scaling from the first point"', ">efficiency</button>", "samples per second")
assert ">Throughput</b>" not in pages["step-1"]
has("step-1", ">Step time</b>", "mlp-wide")
has("profile", "GFLOP/s", "matmul")
has("overlap", "per_parameter", "flat", "overlapped 1 MiB", "One step in mode overlapped 4 MiB", "critical path", "bucket 0 ·")
has("checkpoint", "write, MB/s", "async stall, ms", "until it is complete", "while saving", "MB/s")
found = json.load(open("inspect.json"))
for tensor in found["tensors"]:
    assert f">{html.escape(tensor['name'])}</td>" in pages["inspect"], tensor
has("inspect", "rate = 0.9, updates = 60", ">model</th>")
has("digits", 'class="mark resumed"' if "resumed" in pages["digits"] else ">Loss</b>", 'data-label="EMA 0.9"', "bucket 0", "<h2>Environment and provenance</h2>")
has("sweep", ">optimizer.lr</button>", 'data-label="lr 0.', '<tr data-run="49">')
has("evaluated", ">as 9</button>", "color-mix(")
has("single", 'class="c0 point" data-label="model"')
has("faults", 'class="mark slow_rank"', 'class="mark preempted"', "slow rank", "<title>rank 3 (node-b) takes")
# What a path shows is what was logged: here the loss of the last steps, by the axis.
row = re.search(r'>64 KiB</td><td[^>]*>([^<]*)</td>', pages["sums-both"])
assert row, "no row"
PY
finish
