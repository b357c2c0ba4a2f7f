"""table.py LOCKSTEP FOLDER: a table of mixed columns from CSV to predictions, beside pandas, scikit-learn and PyTorch.

The same network learns from the same training rows, and predicts the same held-out rows. Fills, categories, means and
deviations must be those of the training rows alone; r2 must agree within 0.01. The last line has the figures.
"""
import json
import os
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pandas as pd
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

SEEDS = range(3)
STEPS, BATCH, RATE, WIDTH = 2000, 64, 0.003, 64


def make_table(rows=5000):
    """Dates, 20 columns of numbers (three lack some), two of categories (one lacks some), a price."""
    r = np.random.default_rng(0)
    x = r.normal(size=(rows, 20)) * np.logspace(0, 3, 20)
    table = pd.DataFrame(x, columns=[f"f{i:02d}" for i in range(20)])
    table.insert(0, "date", pd.date_range("2020-01-01", periods=rows, freq="h").strftime("%Y-%m-%d %H:%M"))
    table["region"] = r.choice(["north", "south", "east", "west"], rows)
    table["kind"] = r.choice(["A", "B", "C"], rows)
    table["price"] = (100 + x[:, 0] * 5 + x[:, 1] * 3 + (table.region == "north") * 10 + (table.kind == "C") * -7
                      + r.normal(size=rows))
    for column in ["f03", "f07", "f11"]:
        table.loc[r.random(rows) < 0.05, column] = np.nan
    table.loc[r.random(rows) < 0.02, "region"] = np.nan
    table.to_csv("table.csv", index=False, float_format="%.6g")


def run(*words):
    print("$", *words, flush=True)
    subprocess.run([LOCKSTEP, *words[1:]], check=True)


def output(name):
    with h5py.File(name) as file:
        return file["output"][()].ravel()


def seconds(dates):
    return (pd.to_datetime(dates) - pd.Timestamp(0)) / pd.Timedelta(seconds=1)


def check_learned(train):
    """What the data file says was learned, against pandas on the training rows."""
    with h5py.File("table.h5") as file:
        described = json.loads(file["x"].attrs["table"])
        mean, std = file["y"].attrs["mean"][0], file["y"].attrs["std"][0]
    for column in described["columns"]:
        values = train[column["name"]]
        if column["as"] == "one-hot":
            assert column["categories"] == sorted(values.dropna().unique()), column
        else:
            values = seconds(values) if column["as"] == "date" else values
            assert column["fill"] == values.median(), (column, values.median())
    assert abs(mean - train.price.mean()) < 1e-5 and abs(std - train.price.std(ddof=0)) < 1e-5, (mean, std)


def of_pytorch(train, held_out, seed):
    """r2 of the same network with scikit-learn's pipeline and PyTorch."""
    numbers = [c for c in train if c.startswith("f")] + ["date"]
    pipeline = ColumnTransformer([
        ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        ("categories", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["region", "kind"])])
    x = torch.tensor(pipeline.fit_transform(train), dtype=torch.float32)
    scaler = StandardScaler().fit(train[["price"]])
    y = torch.tensor(scaler.transform(train[["price"]]), dtype=torch.float32)
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    layers = torch.nn
    model = layers.Sequential(layers.Linear(x.shape[1], WIDTH), layers.ReLU(), layers.Linear(WIDTH, WIDTH),
                              layers.ReLU(), layers.Linear(WIDTH, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(STEPS):
        if step * BATCH % (len(x) - BATCH) < BATCH or step == 0:
            order, at = torch.randperm(len(x)), 0
        rows, at = order[at:at + BATCH], at + BATCH
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        predicted = model(torch.tensor(pipeline.transform(held_out), dtype=torch.float32))
    return r2_score(held_out.price, scaler.inverse_transform(predicted.numpy()))


LOCKSTEP = os.path.abspath(sys.argv[1])
os.makedirs(sys.argv[2], exist_ok=True)
os.chdir(sys.argv[2])
make_table()
run("lockstep", "prepare", "csv", "table.csv", "--target", "price", "--categorical", "region,kind", "--date", "date",
    "--missing", "median", "--eval-fraction", "0.2", "--out", "table.h5", "--force")
table = pd.read_csv("table.csv")
with h5py.File("table-eval.h5") as file:
    is_held_out = seconds(table.date).isin(file["x"][:, 0])
train, held_out = table[~is_held_out].copy(), table[is_held_out].copy()
assert len(held_out) == 1000, len(held_out)
check_learned(train)
with open("table.ini", "w") as file:
    file.write(f"""[model]
name = mlp
sizes = 28 {WIDTH} {WIDTH} 1
[task]
name = regression
[data]
train = table.h5
eval = table-eval.h5
normalize = x y
[train]
steps = {STEPS}
global_batch = {BATCH}
[optimizer]
lr = {RATE}
""")
new = held_out.drop(columns="price")
new[new.columns[::-1]].assign(comment="none").to_csv("new.csv", index=False)  # other order, one column more
ours, theirs = [], []
for table_of in (train, held_out):
    table_of["date"] = seconds(table_of["date"])
for seed in SEEDS:
    shutil.rmtree(f"run{seed}", ignore_errors=True)  # of an earlier start
    run("lockstep", "train", "table.ini", "--run", f"run{seed}", "--set", f"train.seed={seed}")
    for data, out in [("new.csv", "new.h5"), ("table-eval.h5", "eval.h5")]:
        run("lockstep", "predict", f"run{seed}/checkpoints/latest", "--data", data, "--out", out, "--force")
    assert (output("new.h5") == output("eval.h5")).all(), "a table and its data file have other predictions"
    ours.append(r2_score(held_out.price, output("new.h5")))
    theirs.append(of_pytorch(train, held_out, seed))
difference = abs(np.mean(ours) - np.mean(theirs))
print(f"r2 {np.mean(ours):.4f} {[round(r, 4) for r in ours]}, scikit-learn and PyTorch {np.mean(theirs):.4f} "
      f"{[round(r, 4) for r in theirs]}, difference {difference:.4f}")
sys.exit(int(difference > 0.01))
