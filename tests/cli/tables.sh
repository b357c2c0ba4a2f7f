#!/usr/bin/env bash
# A table of mixed columns, from CSV to predictions: the checkpoint reads other tables by the names of their columns, in any order, and
# refuses by name what is missing or unknown. What is learned of a table comes from its training rows alone.
source "$(dirname "$0")/../support/cli.sh"

/usr/bin/python3 - <<'PY' || fail "the tables were not written"
import random
r = random.Random(1)
def row(i):
    a, b, kind = r.gauss(0, 1), r.gauss(5, 2), r.choice("pqr")
    when = f"2024-{i % 12 + 1:02}-{i % 28 + 1:02} {i % 24:02}:30"
    price = 3 * a + b + {"p": 4, "q": 0, "r": -4}[kind]
    return [f"id{i}", when, f"{a:.4f}", "" if i % 17 == 5 else f"{b:.4f}", "" if i % 23 == 7 else kind, f"{price:.4f}"]
def write(name, rows, order=range(6), separator=",", head=("id", "when", "a", "b, of it", "kind", "price [EUR]"), also=()):
    quoted = lambda text: f'"{text}"' if separator in text else text
    with open(name, "w") as f:
        f.write(separator.join([quoted(head[i]) for i in order] + [*also]) + "\n")
        for row in rows:
            f.write(separator.join([row[i] for i in order] + ["7" for _ in also]) + "\n")
rows = [row(i) for i in range(400)]
write("all.csv", rows)
new = [row(i) for i in range(400, 440)]
write("new.csv", new)
write("shuffled.csv", new, order=(4, 2, 3, 1), also=("shop",))
write("missing.csv", new, order=(0, 1, 2, 5))
write("unknown.csv", [new[0][:4] + ["z"] + new[0][5:]] + new[1:])
write("none.csv", [new[0][:4] + [""] + new[0][5:]] + new[1:])
write("european.csv", [[x.replace(".", ",") for x in row] for row in new], separator=";")
for name, part in (("part1.csv", rows[:100]), ("part2.csv", rows[100:])): write(name, part)
PY
gzip -k part2.csv
options=(--target 'price [EUR]' --categorical kind --date 'when=sines' --drop id --missing median)
refused 3 "all.csv:2: field 1 \('id'\) is 'id0', not a number; try --date when --categorical kind --drop id --missing median" \
  timeout 60 "$LOCKSTEP" prepare csv all.csv --target 'price [EUR]' --out all.h5
"$LOCKSTEP" prepare csv all.csv "${options[@]}" --eval-fraction 0.2 --out table.h5 >out.log 2>&1 || fail "prepare csv: $(cat out.log)"
grep -qx 'table.h5: 320 samples of 12 numbers (float64), target price \[EUR\]' out.log || fail "not said: $(cat out.log)"
grep -qx 'table-eval.h5: 80 samples, held out' out.log || fail "held-out samples are not told: $(cat out.log)"
"$LOCKSTEP" prepare csv part1.csv part2.csv.gz "${options[@]}" --eval-fraction 0.2 --out parts.h5 >out.log 2>&1 || fail "parts: $(cat out.log)"
for part in "" -eval; do cmp -s "table$part.h5" "parts$part.h5" || fail "several files make other data than one: parts$part.h5"; done
# Killed between the two files, it leaves no held-out lines beside a training file that may have them.
"$LOCKSTEP" prepare csv all.csv "${options[@]}" --eval-fraction 0.4 --out killed.h5 >out.log 2>&1 || fail "prepare csv: $(cat out.log)"
LD_PRELOAD=$LOCKSTEP_FAULT_LIBRARY LOCKSTEP_FAULT="nth=1 path=killed-eval.h5 call=rename kill=before log=fault.log" \
  "$LOCKSTEP" prepare csv all.csv "${options[@]}" --eval-fraction 0.2 --out killed.h5 --force >out.log 2>&1
cmp table.h5 killed.h5 || fail "it was not killed after the first file: $(cat out.log fault.log)"
[ ! -e killed-eval.h5 ] || fail "killed-eval.h5 is of an earlier call"
refused 2 '--categorical: a quote without its end' "$LOCKSTEP" prepare csv all.csv --categorical '"kind' --target price --out no.h5
cat >run.ini <<'INI'
[model]
name = mlp
sizes = 12 16 1
[task]
name = regression
[data]
train = table.h5
eval = table-eval.h5
normalize = x y
[train]
steps = 400
global_batch = 32
shards = 2
eval_every = 400
[optimizer]
lr = 0.01
INI
train_to_end run 2
r2=$("$LOCKSTEP" eval run/checkpoints/latest --data new.csv --json | sed -nE 's/.*"r2": ([0-9.]+).*/\1/p')
[ "$(cut -c 1-3 <<<"${r2:-0}")" = 0.9 ] || fail "r2 of new.csv is '$r2'"

# Elsewhere, without the training data. A table has the predictions of its data file, at any number of ranks.
"$LOCKSTEP" prepare csv new.csv --statistics table.h5 --out new.h5 >out.log 2>&1 || fail "prepare --statistics: $(cat out.log)"
mkdir elsewhere
cp -L run/checkpoints/latest elsewhere/model.h5
cp new.h5 ./*.csv elsewhere
cd elsewhere || exit 1
predicts() {
  local out=$1
  shift
  "$LOCKSTEP" predict model.h5 --out "$out" "$@" >out.log 2>err.log || fail "predict $*: $(cat err.log)"
}
predicts wanted.h5 --data new.h5
for table in new shuffled european; do
  predicts "$table.out.h5" --data "$table.csv"
  cmp -s wanted.h5 "$table.out.h5" || fail "$table.csv has other predictions than its data file"
done
predicts dropped.h5 --data new.csv
grep -q ignored err.log && fail "a column that --drop left out on purpose is told: $(cat err.log)"
predicts again.h5 --data shuffled.csv
grep -q warning err.log && fail "an ignored column is a warning: $(cat err.log)"
grep -q 'shuffled.csv: ignored, as training did not learn from this column: shop$' err.log || fail "an ignored column is not told: $(cat err.log)"
[ "$(grep -c ignored err.log)" -eq 1 ] || fail "an ignored column is told twice: $(cat err.log)"
$LOCKSTEP_MPIRUN -n 2 "$LOCKSTEP" predict model.h5 --data new.csv --out two.h5 >out.log 2>&1 || fail "two ranks: $(cat out.log)"
cmp -s wanted.h5 two.h5 || fail "two ranks predict something else"
refused 3 'missing.csv:1: columns that training learned from are missing: b, of it, kind; it has id, when, a, price' \
  timeout 60 "$LOCKSTEP" predict model.h5 --data missing.csv --out no.h5
refused 3 "unknown.csv:2: field 5 \('kind'\) is 'z', a category that training did not see: it knows p, q, r" \
  timeout 60 "$LOCKSTEP" predict model.h5 --data unknown.csv --out no.h5
predicts unknown.h5 --data unknown.csv --unknown as-missing
predicts none.h5 --data none.csv
cmp -s unknown.h5 none.h5 || fail "an unknown category is not taken as a missing one"
refused 2 '--unknown maybe: must be as-missing' timeout 60 "$LOCKSTEP" predict model.h5 --data new.csv --unknown maybe --out no.h5
refused 3 'shuffled.csv:1: columns that training learned from are missing: price' timeout 60 "$LOCKSTEP" eval model.h5 --data shuffled.csv
printf 'PAR1' >table.parquet
name="it's; touch pasted #.parquet"
cp table.parquet "$name"
"$LOCKSTEP" predict model.h5 --data "$name" --out no.h5 2>&1 | sed 's/.*convert it: //' >pasted.log
# shellcheck source=/dev/null disable=SC2317  # the command calls it
(python3() { printf '%s\n' "$3" >argument.log; }; source ./pasted.log)
[ "$(cat argument.log)" = "$name" ] || fail "the command cannot be pasted: $(cat pasted.log)"
[ ! -e pasted ] || fail "the command runs what a file is named: $(cat pasted.log)"
refused 3 'not a CSV file, but a Parquet file: convert it: python3 -c' timeout 60 "$LOCKSTEP" predict model.h5 --data table.parquet --out no.h5
cd .. || exit 1

# Data whose table means something else are refused.
"$LOCKSTEP" prepare csv part1.csv "${options[@]}" --out other.h5 >out.log 2>&1 || fail "part1: $(cat out.log)"
refused 3 'other.h5: .*x is of a table whose columns, categories or fills differ' timeout 60 "$LOCKSTEP" eval run/checkpoints/latest --data other.h5

# A classifier of a plain table predicts for tables, too: by the names of its columns.
printf '%s\n' 'a,b,y' '1,2.5,no' '3,4,yes' '0,1,no' '5,2,yes' >plain.csv
printf '%s\n' 'b,a' '4,3' '2.5,1' >plain-new.csv
"$LOCKSTEP" prepare csv plain.csv --out plain.h5 >out.log 2>&1 || fail "plain.csv: $(cat out.log)"
small_mlp 'steps = 2' 'global_batch = 4' 'shards = 1' | sed 's/^sizes = .*/sizes = 2 4 2/' >plain.ini
"$LOCKSTEP" train plain.ini --run plain --set data.train=plain.h5 >out.log 2>&1 || fail "plain: $(cat out.log)"
"$LOCKSTEP" predict plain/checkpoints/latest --data plain-new.csv --out a.h5 >out.log 2>&1 || fail "plain-new.csv: $(cat out.log)"
"$LOCKSTEP" predict plain/checkpoints/latest --data plain.csv --out b.h5 >out.log 2>&1 || fail "plain.csv: $(cat out.log)"
/usr/bin/python3 -c '
import h5py
a, b = (h5py.File(f)["output"][()] for f in ("a.h5", "b.h5"))
assert (a == b[[1, 0]]).all(), (a, b)' || fail "rows of a plain table have other predictions in another order of columns"
refused 3 'does not name the column of the labels' timeout 60 "$LOCKSTEP" eval plain/checkpoints/latest --data plain.csv

# Labels that are numbers are not numbered anew where a table names them.
printf '%s\n' 'a,b,y' '1,2.5,0' '3,4,1' '0,,0' '5,2,1' >numbers.csv
sed 's/,0$/,zero/; s/,1$/,one/' numbers.csv >names.csv
"$LOCKSTEP" prepare csv numbers.csv --missing median --out plain.h5 --force >out.log 2>&1 || fail "numbers.csv: $(cat out.log)"
"$LOCKSTEP" train plain.ini --run numbers --set data.train=plain.h5 >out.log 2>&1 || fail "numbers: $(cat out.log)"
"$LOCKSTEP" eval numbers/checkpoints/latest --data numbers.csv >out.log 2>&1 || fail "eval numbers.csv: $(cat out.log)"
refused 3 "names.csv:2: the label, .* is 'zero', but labels of the model are numbers" timeout 60 "$LOCKSTEP" eval numbers/checkpoints/latest --data names.csv

# A table with decimal commas is read as it was prepared.
tr ',' '\t' <numbers.csv | sed 's/2\.5/2,5/' >commas.tsv
"$LOCKSTEP" prepare csv commas.tsv --missing median --decimal comma --out plain.h5 --force >out.log 2>&1 || fail "commas.tsv: $(cat out.log)"
"$LOCKSTEP" train plain.ini --run commas --set data.train=plain.h5 >out.log 2>&1 || fail "commas: $(cat out.log)"
for table in numbers.csv commas.tsv; do
  "$LOCKSTEP" predict commas/checkpoints/latest --data $table --out "$table.out.csv" >out.log 2>&1 || fail "$table: $(cat out.log)"
done
cmp numbers.csv.out.csv commas.tsv.out.csv || fail "decimal commas make other predictions"
refused 3 'data.eval: numbers.csv is no data file; make one: lockstep prepare csv' ranks 2 train plain.ini --run eval --set data.train=plain.h5 \
  --set data.eval=numbers.csv
refused 3 'data.train: gone.csv: No such file' ranks 1 train plain.ini --run eval --set data.train=gone.csv
cp plain.h5 named.csv
ranks 1 train plain.ini --run named --set data.train=named.csv --set train.steps=1 >out.log 2>&1 || fail "an HDF5 file named .csv: $(cat out.log)"

finish
