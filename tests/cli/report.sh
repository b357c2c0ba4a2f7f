#!/usr/bin/env bash
# lockstep report: one file without a network, with every metric of its runs; live, torn and empty runs; what is no run is an error.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
{
  small_mlp 'steps = 12' 'global_batch = 16' 'shards = 2' 'eval_every = 6'
  printf '%s\n' '[ema]' 'rates = 0.9' '[log]' 'every = 2' 'trace = trace.json'
} >run.ini
sed -i 's/^train = digits.h5/train = digits.h5\neval_fraction = 0.2/' run.ini
"$LOCKSTEP" train run.ini --run a --set train.steps=6 >log 2>&1 || fail "training: $(tail -n 3 log)"
"$LOCKSTEP" train run.ini --run a >log 2>&1 || fail "training on: $(tail -n 3 log)"
"$LOCKSTEP" train run.ini --run b --set optimizer.lr=0.5 >log 2>&1 || fail "training: $(tail -n 3 log)"
grep -q "^<!-- lockstep report" a/report.html || fail "no report at the end of a run"
rm a/report.html
"$LOCKSTEP" train run.ini --run quiet --set report.write=false >log 2>&1 || fail "training: $(tail -n 3 log)"
[ ! -e quiet/report.html ] || fail "report.write = false wrote a report"
mkdir -p refusing/report.html
"$LOCKSTEP" train run.ini --run refusing >log 2>&1 || fail "a report that cannot be written ended the run: $(tail -n 3 log)"
[ "$(grep -c "report.write: no report" log)" -eq 1 ] || fail "a report that cannot be written is not said once"
mkdir a/samples
printf '\x89PNG\r\n' >a/samples/step-000000006.png
printf 'a <b> & "c"' >a/samples/step-000000012.txt

[ "$("$LOCKSTEP" report a)" = a/report.html ] || fail "the name of the page is not printed"
"$LOCKSTEP" report a >/dev/null || fail "a report does not replace an older one"
"$LOCKSTEP" report a b --out both.html >/dev/null || fail "two runs"
python3 - <<'PY' || fail "pages"
import json, re
one, both = open("a/report.html").read(), open("both.html").read()
for page in one, both:
    assert len(page.encode()) < 2_000_000
    assert not re.search(r'(?:src|href|url)\s*[=(]\s*["\']?\s*(?:https?:)?//', page), "a page that needs a network"
for title in ("Training loss", "Evaluation: loss", "Evaluation: accuracy", "Learning rate", "Gradient norm", "Throughput", "Step time",
              "Exposed communication", "Wait for data", "Memory of rank 0, at most", "Computation of each rank", "Logging"):
    for page in one, both:
        assert f"<b>{title}</b>" in page, title
assert 'data-label="EMA 0.9"' in one
assert 'class="mark resumed" data-x="6"' in one, "the restart is not marked"
assert "data:image/png;base64,iVBORw0K" in one and "a &lt;b&gt; &amp; &quot;c&quot;" in one, "samples"
assert "bucket 0" in one, "no timeline of a step"
assert "Environment and provenance" in one
assert 'data-label="a"' in both and 'data-label="b"' in both and "<button>optimizer.lr</button>" in both
# The paths hold what metrics.jsonl holds.
lines = [json.loads(line) for line in open("a/metrics.jsonl")]
logged = [(line["step"], line["loss"]) for line in lines if "loss" in line]
figure = re.search(r'<figure class="chart wide".*?</figure>', one, re.S)[0]
y0, y1, log, x0 = (float(re.search(f'data-{key}="([^"]*)"', figure)[1]) for key in ("y0", "y1", "log", "x0"))
numbers = list(map(int, re.findall(r"-?\d+", re.search(r'data-label="loss" d="([^"]*)"', figure)[1])))
x = y = 0
drawn = []
for dx, dy in zip(numbers[::2], numbers[1::2]):
    x, y = x + dx, y + dy
    value = y0 + y / 1e6 * (y1 - y0)
    drawn.append((x + x0, 10 ** value if log else value))
assert [step for step, _ in drawn] == [step for step, _ in logged], (drawn, logged)
assert all(abs(p - q) <= 1e-5 * abs(q) for (_, p), (_, q) in zip(drawn, logged)), (drawn, logged)
PY

mkdir torn empty nothing
head -c 700 a/metrics.jsonl >torn/metrics.jsonl
: >empty/metrics.jsonl
for run in torn empty; do "$LOCKSTEP" report "$run" >/dev/null 2>err.log || fail "$run: $(cat err.log)"; done
grep -q '1 line could not be read' torn/report.html || fail "the torn line is not counted"
grep -q 'No step has been logged yet' empty/report.html || fail "an empty run looks like another"

"$LOCKSTEP" train run.ini --run stopped --set train.steps=1000000 >log 2>&1 &
wait_for=$!
until_says loss stopped/metrics.jsonl "$wait_for"
touch stopped/stop
wait "$wait_for"
grep -q "\"event\":\"stopped\"" stopped/metrics.jsonl || fail "a stop is no event: $(tail -n 1 stopped/metrics.jsonl)"
[ ! -e stopped/report.html ] || fail "a stopped run waits for its report"
"$LOCKSTEP" report stopped >/dev/null || fail "a stopped run"
grep -q "class=.mark stopped" stopped/report.html || fail "the stop is not marked"

refused 2 'a run directory is missing' ranks 1 report
refused 3 'is not a run' ranks 1 report nothing
refused 3 'not a directory' ranks 1 report digits.h5
refused 3 'not a directory' ranks 1 report absent
refused 2 'is not a page' ranks 1 report a --out run.ini
refused 2 'nowhere' ranks 1 report a --out nowhere/report.html
[ ! -e nothing/report.html ] || fail "a page of no run"
finish
