#!/usr/bin/env python3
"""kernel_list_test.py LIBRARY FAKE_CUPTI: kernel_list.py counts what a made-up CUPTI says, and refuses what is not all."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

library, cupti = sys.argv[1:]
script = pathlib.Path(__file__).with_name("kernel_list.py")
# A program with a GPU: its driver loads the library that it is told, and calls it.
program = ("import ctypes, os, sys;"
           "os.environ.get('FAKE_RANKS') and os.fork();"
           # What it tries, where it tries anything: in runs of few steps, or with an empty cache.
           "cache = os.environ['CACHE'];"
           "tries = {'': 1, 'few': sys.argv[-1] == '2', 'once': not os.path.exists(cache)}[os.environ.get('TUNES', '')];"
           "tries or ctypes.CDLL(None).unsetenv(b'FAKE_CUPTI_TUNES');"
           "open(cache, 'w').close();"
           "ctypes.CDLL(None).setenv(b'FAKE_STEPS', sys.argv[-1].encode(), 1);"
           "ctypes.CDLL(os.environ['CUDA_INJECTION64_PATH']).InitializeInjection()")


def run(expected, *more, **environment):
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "LOCKSTEP_CUPTI": cupti, "CACHE": os.path.join(folder, "cache"), **environment}
        done = subprocess.run([sys.executable, script, "--steps", "2", "6", *more, "--", sys.executable, "-c", program], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert done.returncode == expected, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout) if expected == 0 else done.stderr


found = run(0, "--library", library)
rows = {row["name"]: row for row in found["kernels"]}
# Two launches a step, the grid of the largest; the arguments of template arguments are left out.
assert list(rows) == ["lockstep::fold<float>", "outer_::run<outer_::sums<...>, int>", "triton_poi_fused_0d1"], rows
fold = rows["lockstep::fold<float>"]
assert fold == {"name": "lockstep::fold<float>", "count": 2, "ms": 3, "grid": [9, 1, 1], "block": [256, 1, 1]}, fold
assert (found["launches"], found["kernel_ms"]) == (4, 3.75), found
assert found["copies"] == [{"name": "memcpy host to device", "count": 1, "ms": 0.1, "bytes": 64},
                           {"name": "memset", "count": 1, "ms": 0.05, "bytes": 32}], found
# Other numbers of steps give the same, but for the grid, which is larger in each step here.
assert run(0, "--library", library, "--steps", "3", "4")["kernels"] == [{**fold, "grid": [7, 1, 1]}, *found["kernels"][1:]]

# What a compiler tries with an empty cache is in the first run alone, which is repeated then. What each run of few steps has is refused.
tries = {"FAKE_CUPTI_TUNES": "60"}
assert run(0, "--library", library, TUNES="once", **tries) == found
assert "tried_once was launched 1 times" in run(1, "--library", library, TUNES="few", FAKE_CUPTI_TUNES="1")
assert "triton_poi_fused_0d1 was launched 62 times" in run(1, "--library", library, TUNES="few", **tries)
assert "MANY must be the larger" in run(2, "--library", library, "--steps", "6", "2")

assert "dropped" in run(1, "--library", library, FAKE_CUPTI_DROPS="1")
assert "1 records of CUPTI have no times" in run(1, "--library", library, FAKE_CUPTI_UNFINISHED="1")
assert "2 processes with kernels" in run(1, "--library", library, FAKE_RANKS="2")
assert "no CUPTI" in run(77, "--library", library, LOCKSTEP_CUPTI="/nowhere/libcupti.so")
program = "import sys; sys.exit(77)"
assert "exit code 77" in run(77, "--library", library)
assert "has no CUPTI" in run(77, "--library", "/nowhere/libkernel_list.so")
print("all held")
