#!/usr/bin/env bash
# The progress line on a terminal: drawn in place, never as wide as the terminal, erased by the lines that stay; plain lines elsewhere.
source "$(dirname "$0")/../support/cli.sh"

digits digits.h5
small_mlp 'steps = 3000' 'global_batch = 32' 'shards = 2' 'eval_every = 1500' '[log]' 'every = 500' >run.ini
sed -i '/^train = /a eval_fraction = 0.2' run.ini

cat >terminal.py <<'PY'
"""terminal.py COLUMNS TERM COMMAND...: runs it on a terminal of that width; its bytes on standard output."""
import fcntl, os, pty, struct, sys, termios
columns, term = int(sys.argv[1]), sys.argv[2]
pid, terminal = pty.fork()
if pid == 0:
    os.environ["TERM"] = term
    fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.execvp(sys.argv[3], sys.argv[3:])
while True:
    try:
        data = os.read(terminal, 65536)
    except OSError:  # the other end is closed
        break
    if not data:
        break
    sys.stdout.buffer.write(data)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
PY

cat >check.py <<'PY'
"""check.py COLUMNS FILE: what a terminal shows, and what it drew on the way."""
import re, sys
columns, text = int(sys.argv[1]), open(sys.argv[2], newline="").read()
kept, drawn = [], []
for line in text.split("\n"):
    pieces = line.rstrip("\r").split("\r\x1b[K")
    kept.append(pieces[-1])
    drawn += pieces[:-1]
drawn = [line for line in drawn if line]
assert "\x1b" not in "".join(kept + drawn), "other control sequences"
assert drawn, "nothing is drawn"
for line in drawn:
    assert len(line) < columns, f"{len(line)} columns of {columns}: {line!r}"
    assert columns < 20 or re.match(r"step \d+/3000  (loss (\d+\.\d{4}|0\.00\d+)|evaluation \d+ %)(  |$)", line), line
for line in kept[:-1]:
    assert re.match(r"\[\d\d:\d\d:\d\d\] ", line), f"a line that was drawn is left: {line!r}"
assert kept[-1] == "", kept[-1]
assert any("eval loss" in line for line in kept) and kept[-2].count("done: 3000 steps"), kept[-3:]
if columns >= 120:
    whole = r"step \d+/3000  loss \d+\.\d{4}  \d+ samples/s  \d+:\d\d:\d\d left  ends (\w+ \d+ \w+ )?\d\d:\d\d  data wait \d+\.\d ms$"
    assert any(re.match(whole, line) for line in drawn), drawn[:3]
PY

for columns in 132 40 9; do
  python3 terminal.py $columns xterm "$LOCKSTEP" train run.ini --run "wide-$columns" >"out-$columns" || fail "$columns columns: exit $?"
  python3 check.py $columns "out-$columns" || fail "$columns columns: $(tail -n 3 "out-$columns" | cat -v)"
done

# Two ranks draw it as well: through an mpirun whose standard error is the terminal, and through jobs/train-mpirun.sh, which reads that.
# Into a file or a pipe mpirun's lines are plain.
export LOCKSTEP
export OMPI_MCA_btl=^tcp  # Open MPI 5 has a word about networks that it does not need here
read -r -a start <<<"$LOCKSTEP_MPIRUN -n 2"
python3 terminal.py 132 xterm "${start[@]}" "$LOCKSTEP" train run.ini --run mpirun >out-mpirun || fail "mpirun: exit $?"
python3 check.py 132 out-mpirun || fail "mpirun: $(tail -n 3 out-mpirun | cat -v)"
python3 terminal.py 100 xterm bash "$LOCKSTEP_SOURCE_DIR/jobs/train-mpirun.sh" 2 run.ini --run script >out-script || fail "train-mpirun.sh: exit $?"
python3 check.py 100 out-script || fail "train-mpirun.sh: $(tail -n 3 out-script | cat -v)"
python3 terminal.py 132 xterm bash -c '"$@" 2>out-file' mpirun "${start[@]}" "$LOCKSTEP" train run.ini --run file >out-tty || fail "mpirun 2>FILE: exit $?"
! grep -q $'\x1b' out-file || fail "mpirun 2>FILE: control sequences"
# The reason of a failure is said again below it, by the script that drew.
python3 terminal.py 132 xterm bash "$LOCKSTEP_SOURCE_DIR/jobs/train-mpirun.sh" 2 run.ini --run nan --set optimizer.lr=1e30 --set optimizer.name=sgd >out-nan
[ $? -eq 4 ] || fail "train-mpirun.sh: exit $?"
[ "$(tr '\r' '\n' <out-nan | sed $'s/.*\e\\[K//' | grep -c '^lockstep: .*loss')" -eq 2 ] || fail "train-mpirun.sh: the reason: $(cat -v out-nan)"

# A terminal that cannot draw a line again, and no terminal at all: the same plain lines.
python3 terminal.py 132 dumb "$LOCKSTEP" train run.ini --run dumb >out-dumb || fail "a dumb terminal: exit $?"
"$LOCKSTEP" train run.ini --run plain 2>out-plain || fail "no terminal: exit $?"
for kind in dumb plain; do
  ! grep -q $'\x1b' out-$kind || fail "$kind: control sequences"
  [ "$(grep -cE '^\[[0-9:]+\] step [0-9]+/3000  loss [0-9.]+  [0-9]+ samples/s(  data wait [0-9.]+ ms)?  [0-9]+:[0-9]{2}:[0-9]{2} left.?$' out-$kind)" -eq 6 ] ||
    fail "$kind: not a line every 500 steps: $(cat out-$kind)"
done

# Without log.every: at most one line a second, of steps and of evaluations, and the last one; metrics.jsonl and TensorBoard have all.
sed '/^\[log\]/,$d; s/^eval_every = .*/eval_every = 100/; s/^steps = .*/steps = 30000/' run.ini >often.ini
"$LOCKSTEP" train often.ini --run often 2>out-often || fail "often: exit $?"
for lines in 'step [0-9]*/' 'step [0-9]*  eval'; do
  seconds=$(sed -nE "s#^\[([0-9:]+)\] $lines.*#\1#p" out-often)
  { [ -n "$seconds" ] && [ -z "$(sed '$d' <<<"$seconds" | uniq -d)" ]; } || fail "often: several lines a second: $(cat out-often)"
done
{ grep -q 'step 30000/30000 ' out-often && grep -q 'step 30000  eval' out-often; } || fail "often: not the last step: $(tail -n 4 out-often)"
{ [ "$(grep -c '"lr"' often/metrics.jsonl)" -eq 3000 ] && [ "$(grep -c eval_loss often/metrics.jsonl)" -eq 300 ]; } || fail "often: lines are missing in metrics.jsonl"

# Text: tokens/s as well.
words text.h5
small_gpt '[train]' 'steps = 4' 'global_batch = 4' >gpt.ini
"$LOCKSTEP" train gpt.ini --run gpt --set log.every=2 2>out-gpt || fail "text: exit $?"
[ "$(grep -cE 'step [24]/4  loss [0-9.]+  [0-9]+ samples/s  [0-9]+ tokens/s  ' out-gpt)" -eq 2 ] || fail "text: $(cat out-gpt)"
python3 -c '
import json
line = [line for line in map(json.loads, open("gpt/metrics.jsonl")) if "lr" in line][-1]
assert abs(line["tokens_per_second"] / line["samples_per_second"] - 32) < 1e-6, line' || fail "tokens_per_second: $(tail -n 1 gpt/metrics.jsonl)"
finish
