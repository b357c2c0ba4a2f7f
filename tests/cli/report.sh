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
"$LOCKSTEP" train run.ini --run quiet --set report.write=false --set data.eval_fraction=0 >log 2>&1 || fail "training: $(tail -n 3 log)"
grep -q '"higher_is_better":\[\]' quiet/metrics.jsonl || fail "a run without such metrics does not say so: $(head -n 1 quiet/metrics.jsonl)"
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
import itertools, json, re
one, both = open("a/report.html").read(), open("both.html").read()
for page in one, both:
    assert len(page.encode()) < 2_000_000
    assert not re.search(r'(?:src|href|url)\s*[=(]\s*["\']?\s*(?:https?:)?//', page), "a page that needs a network"
one, both = (json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1]) for page in (one, both))
def parts(document, title): return [part for one in document["sections"] if one["title"] == title for part in one["parts"]]
def charts(document): return {chart["title"]: chart for part in parts(document, "Curves") if "charts" in part for chart in part["charts"]["charts"]}
for title in ("Loss", "Evaluation: accuracy", "Learning rate", "Gradient norm", "Throughput", "Step time",
              "Exposed communication", "Data wait", "Peak memory of rank 0", "Computation per rank", "Logging"):
    for page in one, both:
        assert title in charts(page), title
assert [curve["label"] for curve in charts(one)["Loss"]["curves"]] == ["training", "evaluation", "evaluation, EMA 0.9"]
marks = [part["charts"]["marks"] for part in parts(one, "Curves") if "charts" in part][0]
assert [(mark["x"], mark["kind"]) for mark in marks] == [(6, "resumed")], "the restart is not marked"
samples = parts(one, "Samples")[0]["strip"]
assert samples[0]["png"].startswith("iVBORw0K") and samples[1]["text"] == 'a <b> & "c"', "samples"
assert any("bucket 0" in row for row in parts(one, "One step")[0]["bars"]["rows"]), "no timeline of a step"
assert parts(one, "Environment and provenance")[0]["keys"]
labels = [lr + weights for lr in ("lr 0.001", "lr 0.5") for weights in ("", ", evaluation", ", evaluation, EMA 0.9")]
assert [curve["label"] for curve in charts(both)["Loss"]["curves"]] == labels
assert "optimizer.lr" in parts(both, "Runs")[0]["table"]["columns"]
assert "checkpoint.every" not in parts(both, "Runs")[0]["table"]["columns"], "a measured interval"
assert charts(one)["Evaluation: accuracy"]["linear"]
facts = dict(one["facts"])
assert int(facts["parameters"].replace(",", "")) > 100 and re.fullmatch(r"digits.h5, \d+ samples", facts["data"]), facts
assert re.fullmatch(r"0:\d\d:\d\d", facts["duration"]), facts
# The keys that were set come first, then those with their default values.
keys = [[f"{table['title']}.{name}" for table in part["columns"] for name, _ in table["keys"]] for part in parts(one, "Configuration") if "columns" in part]
assert "train.steps" in keys[0] and "ema.rates" in keys[0] and "optimizer.lr" not in keys[0], keys[0]
assert "optimizer.lr" in keys[1] and not set(keys[0]) & set(keys[1]), keys[1]
# The curves hold what metrics.jsonl holds.
lines = [json.loads(line) for line in open("a/metrics.jsonl")]
logged = [(line["step"], line["loss"]) for line in lines if "loss" in line]
curve = charts(one)["Loss"]["curves"][0]
places = [curve["low"] + y * curve["unit"] for y in itertools.accumulate(curve["y"])]
drawn = list(zip(itertools.accumulate(curve["x"]), [10 ** y if curve["log"] else y for y in places]))
assert [step for step, _ in drawn] == [step for step, _ in logged], (drawn, logged)
assert all(abs(p - q) <= 1e-5 * abs(q) for (_, p), (_, q) in zip(drawn, logged)), (drawn, logged)
PY

mkdir torn empty nothing
head -c 700 a/metrics.jsonl >torn/metrics.jsonl
: >empty/metrics.jsonl
for run in torn empty; do "$LOCKSTEP" report "$run" >/dev/null 2>err.log || fail "$run: $(cat err.log)"; done
grep -q 'Without 1 line that cannot be read' torn/report.html || fail "the torn line is not counted"
grep -q 'The run has not logged a step yet' empty/report.html || fail "an empty run looks like another"

"$LOCKSTEP" train run.ini --run stopped --set train.steps=1000000 >log 2>&1 &
wait_for=$!
until_says loss stopped/metrics.jsonl "$wait_for"
touch stopped/stop
wait "$wait_for"
grep -q "\"event\":\"stopped\"" stopped/metrics.jsonl || fail "a stop is no event: $(tail -n 1 stopped/metrics.jsonl)"
[ ! -e stopped/report.html ] || fail "a stopped run waits for its report"
"$LOCKSTEP" report stopped >/dev/null || fail "a stopped run"
grep -q '"kind":"stopped"' stopped/report.html || fail "the stop is not marked"

refused 2 'the run directory is missing' ranks 1 report
refused 3 'is not a run' ranks 1 report nothing
refused 3 'is not a run directory' ranks 1 report digits.h5
refused 3 'is not a run directory' ranks 1 report absent
refused 2 'is not a page' ranks 1 report a --out run.ini
refused 2 'nowhere' ranks 1 report a --out nowhere/report.html
[ ! -e nothing/report.html ] || fail "a page of no run"
finish
