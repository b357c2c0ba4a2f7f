"""cosmoflow.py OUT.h5 [SAMPLES [SIZE [SEED]]]: made-up universes with the parameters to estimate.

x is a Gaussian random field of SIZE^3 positions whose power falls as k^-slope up to a cutoff: structures of all sizes for a
small slope, large ones for a large slope; below 1 / cutoff the field is smooth. y has slope and cutoff of each.
"""
import sys

import h5py
import numpy as np

samples, size, seed = (int(word) for word in (sys.argv[2:] + ["1000", "32", "1"][len(sys.argv) - 2:]))
random = np.random.default_rng(seed)
low, high = np.array([0.0, 0.1]), np.array([3.0, 0.5])  # slope; cutoff in cycles a position
y = random.uniform(low, high, (samples, 2))
k = np.sqrt(sum(axis**2 for axis in np.meshgrid(np.fft.fftfreq(size), np.fft.fftfreq(size), np.fft.rfftfreq(size), indexing="ij")))
k[0, 0, 0] = np.inf  # no mean
with h5py.File(sys.argv[1], "w") as file:
    x = file.create_dataset("x", (samples, 1, size, size, size), "f4")
    for row, (slope, cutoff) in enumerate(y):
        power = k**-slope * np.exp(-(k / cutoff)**2)
        field = np.fft.irfftn(np.fft.rfftn(random.normal(size=[size] * 3)) * np.sqrt(power), s=[size] * 3, axes=(0, 1, 2))
        x[row, 0] = field / field.std()
    file["y"] = y.astype("f4")
    file["y"].attrs.update({"names": ["slope", "cutoff"], "mean": (low + high) / 2, "std": (high - low) / 2})  # -1 to 1
