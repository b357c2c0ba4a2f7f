#!/usr/bin/env bash
# TensorBoard shows what metrics.jsonl has: TensorBoard's own reader finds the same values at the same steps, each once, also in a run
# that was killed and resumed on another number of ranks, at any place where its last event was cut. Histograms have the same bits at
# any number of ranks. Logs that cannot be written do not end a run, and are said once.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
small_mlp 'steps = 24' 'global_batch = 24' 'shards = 4' 'eval_every = 6' '[log]' 'every = 1' 'histograms_every = 4' '[checkpoint]' 'every = 5' |
  sed 's/^train = digits.h5/&\neval_fraction = 0.2/' >run.ini

# Without histograms and events the bits are the same.
ranks 1 train run.ini --run plain --set log.tensorboard=false >log 2>&1 || fail "without TensorBoard: $(tail -n 2 log)"
[ ! -e plain/tensorboard ] || fail "log.tensorboard = false wrote events"
for count in 1 2 3 4; do
  for sharded in false true; do
    ranks "$count" train run.ini --run "whole-$count-$sharded" --set ddp.sharded_optimizer=$sharded >log 2>&1 ||
      fail "$count ranks: $(tail -n 2 log)"
    expect_same "whole-$count-$sharded/checkpoints/latest" plain/checkpoints/latest
  done
done

# Killed in the middle of writing the event of step 13, after the checkpoint of step 10. Written before: the version, the start, the
# configuration, 12 steps, evaluations of steps 6 and 12, histograms of steps 4, 8 and 12.
LD_PRELOAD=$LOCKSTEP_FAULT_LIBRARY LOCKSTEP_FAULT="nth=21 of=pwrite:events.out.tfevents.* kill=middle log=fault.log" \
  "$LOCKSTEP" train run.ini --run killed >log 2>&1
grep -q killed fault.log || fail "the run was not killed: $(tail -n 2 log)"
grep -q '"step":13,' killed/metrics.jsonl || fail "killed elsewhere: $(tail -n 1 killed/metrics.jsonl)"
ranks 3 train run.ini --run killed >log 2>&1 || fail "resumed: $(tail -n 2 log)"
grep -q 'going on after step 10 ' log || fail "resumed elsewhere: $(cat log)"
expect_same killed/checkpoints/latest plain/checkpoints/latest

# A full disk: metrics.jsonl finds it full, which is said once.
LD_PRELOAD=$LOCKSTEP_FAULT_LIBRARY LOCKSTEP_FAULT="nth=6 of=pwrite:metrics.jsonl path=metrics.jsonl call=pwrite errno=ENOSPC always log=fault.log" \
  "$LOCKSTEP" train run.ini --run full >log 2>&1 || fail "a full disk: exit $?: $(tail -n 2 log)"
[ "$(grep -c 'warning: .*metrics.jsonl: .*No space left on device.*; the run continues' log)" -eq 1 ] || fail "a full disk: $(cat log)"
expect_same full/checkpoints/latest plain/checkpoints/latest

# A removed directory: said once, and the run ends as it would have.
ranks 1 train run.ini --run removed --set train.steps=$endless_steps --set log.histograms_every=0 >log 2>&1 &
launcher=$!
until_says '"step":5,' removed/metrics.jsonl $launcher
rm -rf removed/tensorboard removed/metrics.jsonl  # both: one reason
until_says 'the file has been removed' log $launcher
touch removed/stop
wait $launcher
code=$?
[ "$code" -eq 76 ] || fail "removed logs: exit $code: $(tail -n 2 log)"
[ "$(grep -c 'warning: .*the file has been removed; the run continues' log)" -eq 1 ] || fail "removed logs: $(cat log)"

ranks 1 train run.ini --run diverged --set optimizer.name=sgd --set optimizer.lr=1e30 >log 2>&1
[ $? -eq 4 ] || fail "a run that diverges: $(tail -n 2 log)"
python=${LOCKSTEP_TENSORBOARD_PYTHON:-}
if [ -z "$python" ]; then
  { python3 -m venv venv && venv/bin/pip install --quiet tensorboard; } >pip.log 2>&1 || {
    [ "$failures" -eq 0 ] || finish
    echo "SKIPPED: tensorboard cannot be installed from PyPI: $(tail -n 1 pip.log)"
    exit 77
  }
  python=venv/bin/python
fi
"$python" - <<'PY' || fail "TensorBoard's reader"
import glob, json, logging, math, struct
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
logging.disable(logging.WARNING)

def read(run):
    events = EventAccumulator(run + "/tensorboard", size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    events.Reload()
    return events

def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]

def check_scalars(run):
    wanted = {}
    for line in map(json.loads, open(run + "/metrics.jsonl")):
        for name, value in line.items():
            if name != "step" and (value is None or isinstance(value, (int, float))):
                wanted.setdefault(name, []).append((line["step"], math.nan if value is None else float32(value)))
            for part, element in enumerate(value) if isinstance(value, list) and name != "higher_is_better" else ():
                wanted.setdefault(f"{name}/{part}", []).append((line["step"], float32(element)))
    events = read(run)
    found = {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert found == wanted, (run, {tag for tag in found.keys() | wanted.keys() if found.get(tag) != wanted.get(tag)})
    assert [step for step, _ in found["loss"]] == list(range(1, 25)), found["loss"]
    text = events.Tensors("configuration")[-1].tensor_proto.string_val[0].decode()
    assert "\n    global_batch = 24\n" in text, text
    return found, events

def histograms(events):
    return {tag: [(point.step, point.histogram_value) for point in events.Histograms(tag)] for tag in events.Tags()["histograms"]}

scalars, events = check_scalars("whole-1-false")
first = histograms(events)
assert {tag.split("/")[0] for tag in first} == {"parameters", "gradients"} and len(first) == 8, first.keys()
for tag, points in first.items():
    assert [step for step, _ in points] == [4, 8, 12, 16, 20, 24], (tag, points)
    for _, value in points:
        assert sum(value.bucket) == value.num > 0 and value.min <= value.max <= value.bucket_limit[-1], value
runs = [f"whole-{count}-{sharded}" for count in (1, 2, 3, 4) for sharded in ("false", "true")] + ["killed"]
for run in runs:
    found, events = check_scalars(run)
    assert histograms(events) == first, run
    for tag in ("loss", "lr", "eval_loss", "grad_norm"):
        assert found[tag] == scalars[tag], (run, tag)
# HPARAMS: the keys that are set, those of --set in any case, and how the run ended; every scalar is a metric there.
from tensorboard.plugins.hparams import metadata
def hparams(run, tag, parse):
    content = read(run).PluginTagToContent("hparams")["_hparams_/" + tag]
    return parse(content)
info = hparams("whole-2-true", "session_start_info", metadata.parse_session_start_info_plugin_data)
values = {key: value.number_value or value.string_value or value.bool_value for key, value in info.hparams.items()}
assert values["train.steps"] == 24 and values["model.name"] == "mlp" and values["ddp.sharded_optimizer"] is True, values
assert "optimizer.lr" not in values and "checkpoint.keep" not in values, values
info = hparams("whole-2-false", "session_start_info", metadata.parse_session_start_info_plugin_data)
assert info.hparams["ddp.sharded_optimizer"].WhichOneof("kind") == "bool_value", info
for run in runs:
    assert hparams(run, "session_end_info", metadata.parse_session_end_info_plugin_data).status == 1, run
from tensorboard.plugins.hparams import api_pb2
assert hparams("diverged", "session_end_info", metadata.parse_session_end_info_plugin_data).status == api_pb2.Status.Value("STATUS_FAILURE")
starts = read("killed").Scalars("ranks")
assert [(point.value, point.step) for point in starts][0] == (1, 0) and starts[-1].value == 3 and starts[-1].step == 10, starts
PY
finish
