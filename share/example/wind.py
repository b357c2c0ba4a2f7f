"""wind.py OUT.h5 [SAMPLES]: made-up measurements of a wind turbine, as any program might write them with h5py."""
import sys

import h5py
import numpy as np

samples = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
random = np.random.default_rng(1)
state = random.normal(size=(samples, 5)).astype("float32")
angle = random.uniform(0, 2 * np.pi, size=samples)
hour = np.stack([np.sin(angle), np.cos(angle)], axis=1)  # float64: read as float32
power = np.tanh(state @ [0.5, -0.3, 0.2, 0.1, 0.4] + hour[:, 0]) + 0.01 * random.normal(size=samples)
with h5py.File(sys.argv[1], "w") as file:
    file["state"], file["hour"], file["power"] = state, hour, power[:, None].astype("float32")
