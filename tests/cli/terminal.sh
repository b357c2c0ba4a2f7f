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

# A terminal that cannot draw a line again, and no terminal at all: the same plain lines.
python3 terminal.py 132 dumb "$LOCKSTEP" train run.ini --run dumb >out-dumb || fail "a dumb terminal: exit $?"
"$LOCKSTEP" train run.ini --run plain 2>out-plain || fail "no terminal: exit $?"
for kind in dumb plain; do
  ! grep -q $'\x1b' out-$kind || fail "$kind: control sequences"
  [ "$(grep -cE '^\[[0-9:]+\] step [0-9]+/3000  loss [0-9.]+  [0-9]+ samples/s(  data wait [0-9.]+ ms)?  [0-9]+:[0-9]{2}:[0-9]{2} left.?$' out-$kind)" -eq 6 ] ||
    fail "$kind: not a line every 500 steps: $(cat out-$kind)"
done
finish
