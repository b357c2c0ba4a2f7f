# A run with the snapshots of two widths.
lockstep prepare csv share/data/digits.csv.gz --shape 1,8,8 --out digits.h5
cat >run.ini <<'INI'
[model]
name = mlp
sizes = 64 16 10
[data]
train = digits.h5
eval_fraction = 0.2
[train]
steps = 80
global_batch = 16
shards = 2
[ema]
rates = 0.99
sigma_rel = 0.05 0.10
[checkpoint]
every = 5
INI
lockstep train run.ini --run RUN
