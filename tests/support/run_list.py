"""Runs tests of a bundle's tests/list.json and writes one JSON report: see tests/gpu.sh."""
import argparse
import datetime
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time

CPU_TESTS = r"^(comm|ddp|checkpoint|golden|train)(\..+)?\.np[124]$"  # --cpu
OUTPUT_LINES = 30  # of a failed test, in the report

# In turn, so that ours and the peer's see the same machine. Each prints one JSON document.
OURS = ["lockstep", "bench", "step", "--device", "cuda", "--json", "--steps", "40"]
PEER = ["python3", "{bundle}/tests/bench/peers/gpu.py"]
BENCHMARKS = [
    *(command for name in ("gpt-gpu", "resnet-gpu") for command in (
        OURS + ["--workload", name, "--precision", "bf16"],
        PEER + ["--workload", name, "--precision", "bf16"],
        OURS + ["--workload", name, "--precision", "bf16"])),
    OURS + ["--workload", "gpt-gpu", "--precision", "bf16", "--profile"],
    OURS + ["--workload", "resnet-gpu", "--precision", "bf16", "--profile"],
    OURS + ["--workload", "gpt-gpu", "--precision", "fp32"],
]
BENCHMARK_TIMEOUT_S = 120


def answer(*command):
    """Standard output of a command; None where there is none."""
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60, text=True).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None


def find_gpus():
    """What nvidia-smi says of each GPU, and why there is none."""
    fields = ["name", "driver_version", "memory.total", "compute_cap"]
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader"], timeout=60,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError:
        return [], "no GPU: nvidia-smi is not here"
    except subprocess.TimeoutExpired:
        return [], "no GPU: nvidia-smi did not answer in 60 s"
    if asked.returncode != 0 or not asked.stdout.strip():
        return [], "no GPU: nvidia-smi: " + (asked.stdout.strip() or "no device")
    return [dict(zip(fields, line.split(", "))) for line in asked.stdout.strip().splitlines()], None


def stop(process):
    """Ends what a test started; mpirun is told first, as it alone knows its ranks."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_command(command, bundle, allowed_s, environment=None, apart=False):
    """Runs a command in an empty folder, and ends it with all that it started when its time is over. Its exit code (None: it was ended),
    what it said on standard output and, apart from that or among it, on standard error, and its seconds. OSError if it does not start."""
    command = [word.replace("{bundle}", bundle) for word in command]
    more = {key: value.replace("{bundle}", bundle) for key, value in (environment or {}).items()}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **more}, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=errors if apart else subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(allowed_s)
        except subprocess.TimeoutExpired:
            code = None
            stop(process)
        seconds = time.monotonic() - begin
        output.seek(0)
        errors.seek(0)
        return code, output.read().decode(errors="replace"), errors.read().decode(errors="replace"), seconds


def run(test, bundle, most_s):
    """Runs one test: its entry of the report."""
    entry = {"name": test["name"]}
    allowed_s = min(test["timeout_s"], most_s)
    try:
        code, said, _, seconds = run_command(test["command"], bundle, allowed_s, test["environment"])
    except OSError as error:
        return {**entry, "result": "failed", "reason": f"{test['command'][0]}: {error.strerror}", "seconds": 0.0}
    entry["seconds"] = round(seconds, 2)
    lines = said.splitlines()
    if code == 0:
        entry["result"] = "passed"
    elif code == test["skip_code"]:
        entry.update(result="skipped", reason=next((line for line in reversed(lines) if line.strip()), "without a reason"))
    elif code is None and most_s < test["timeout_s"]:
        entry.update(result="skipped", reason=f"cut off after {allowed_s:.1f} s: --limit-s was reached")
    else:
        reason = f"not done after {allowed_s:.1f} s" if code is None else f"exit code {code}"
        entry.update(result="failed", reason=reason, output=lines[-OUTPUT_LINES:])
    return entry


def benchmark(command, bundle, most_s):
    """Runs one measurement: its entry of the report."""
    entry = {"command": " ".join(command).replace("{bundle}/", ""), "result": None}
    allowed_s = min(BENCHMARK_TIMEOUT_S, most_s)
    try:
        code, output, errors, seconds = run_command(command, bundle, allowed_s, apart=True)
    except OSError as error:
        return {**entry, "output": [str(error)], "seconds": 0.0}
    entry["seconds"] = round(seconds, 1)
    if code is None:
        return {**entry, "output": [f"not done after {allowed_s:.0f} s"]}
    entry["exit_code"] = code
    if code != 0:
        return {**entry, "output": (output + errors).splitlines()[-OUTPUT_LINES:]}
    try:
        entry["result"] = json.loads(output)
    except ValueError as error:
        entry["output"] = [str(error)]
    return entry


def complain(text):
    """Says what is wrong; the exit code."""
    print("gpu.sh: " + text, file=sys.stderr)
    return 2


def main():
    parser = argparse.ArgumentParser(prog="gpu.sh", description="Runs the GPU tests of a bundle and writes one JSON report.")
    parser.add_argument("bundle", help=argparse.SUPPRESS)
    parser.add_argument("--cpu", action="store_true", help="the MPI tests at 1, 2 and 4 ranks as well, which need no GPU")
    parser.add_argument("--no-benchmarks", action="store_true", help="tests only")
    parser.add_argument("--match", metavar="REGEX", help="these tests instead, whatever they need")
    parser.add_argument("--limit-s", type=float, default=450, help="no test starts later, and none runs longer (450)")
    parser.add_argument("--report", default="report.json", help="where the report goes (report.json)")
    options = parser.parse_args()

    try:
        open(options.report, "a", encoding="utf-8").close()  # now, not after the tests
    except OSError as error:
        sys.exit(complain(f"--report: {options.report}: {error.strerror}"))
    with open(os.path.join(options.bundle, "tests", "list.json"), encoding="utf-8") as file:
        listed = json.load(file)
    gpus, no_gpu = find_gpus()
    print(no_gpu or "GPU: " + "; ".join(f"{gpu['name']}, driver {gpu['driver_version']}" for gpu in gpus))
    if options.match:
        chosen = [test for test in listed if re.search(options.match, test["name"])]
    else:
        chosen = [test for test in listed if "gpu" in test["labels"]]
        if not chosen:
            print("this bundle was built without CUDA: it has no GPU tests")
        if options.cpu:
            chosen += [test for test in listed if "gpu" not in test["labels"] and re.search(CPU_TESTS, test["name"])]

    begin = time.monotonic()
    results = []
    for number, test in enumerate(chosen, 1):
        left_s = options.limit_s - (time.monotonic() - begin)
        if "gpu" in test["labels"] and no_gpu:
            entry = {"name": test["name"], "result": "skipped", "reason": no_gpu, "seconds": 0.0}
        elif left_s <= 0:
            entry = {"name": test["name"], "result": "skipped", "reason": "not reached: --limit-s", "seconds": 0.0}
        else:
            entry = run(test, options.bundle, left_s)
        results.append(entry)
        print(f"{number}/{len(chosen)} {entry['result']:7} {entry['seconds']:6.1f} s  {entry['name']}  {entry.get('reason', '')}",
              flush=True)
        for line in entry.get("output", []):
            print("    " + line)

    measured = []
    if not no_gpu and not options.match and not options.no_benchmarks:
        for command in BENCHMARKS:
            left_s = options.limit_s - (time.monotonic() - begin)
            if left_s <= 0:
                measured.append({"command": " ".join(command), "result": None, "output": ["not reached: --limit-s"], "seconds": 0.0})
                continue
            measured.append(benchmark(command, options.bundle, left_s))
            result = measured[-1]["result"] or {}
            print(f"{result.get('step_ms', float('nan')):9.2f} ms a step  {measured[-1]['command']}", flush=True)

    doctor = answer("lockstep", "doctor", "--json")
    count = {kind: sum(entry["result"] == kind for entry in results) for kind in ("passed", "failed", "skipped")}
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpus": gpus,
        **({"no_gpu": no_gpu} if no_gpu else {}),
        "versions": {"lockstep": answer("lockstep", "--version"), "system": answer("uname", "-sr"),
                     "libc": " ".join(platform.libc_ver()), "python": platform.python_version()},
        "doctor": json.loads(doctor) if doctor else None,
        "seconds": round(time.monotonic() - begin, 1),
        **count,
        "tests": results,
        "benchmarks": measured,
    }
    with open(options.report, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
        file.write("\n")
    print(", ".join(f"{number} {kind}" for kind, number in count.items()) + f"; report: {options.report}")
    sys.exit(1 if count["failed"] else 0)


main()
