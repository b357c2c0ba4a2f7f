"""Runs tests of a bundle's tests/list.json and writes one JSON report: see tests/gpu.sh."""
import argparse
import concurrent.futures
import datetime
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
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

# Of --limit-s, until which the checklist and then the tests may go on; what comes after them has the rest. What hangs costs the part of
# its stage at most.
CHECKLIST_ENDS, TESTS_END = 0.4, 0.75
CHECK_TIMEOUT_S = 60
TEST_TIMEOUT_S = 120


def answer(*command):
    """Standard output of a command; None where there is none."""
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, text=True).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None


def memory_mib(gpu):
    """As nvidia-smi says it: "81559 MiB"."""
    return int(re.match(r"\d*", gpu.get("memory.total", "")).group() or 0)


def find_gpus():
    """What nvidia-smi says of each GPU, and why there is none."""
    fields = ["name", "driver_version", "memory.total", "compute_cap"]
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader"], timeout=20,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError:
        return [], "no GPU: nvidia-smi is not here"
    except subprocess.TimeoutExpired:
        return [], "no GPU: nvidia-smi did not answer in 20 s"
    if asked.returncode != 0 or not asked.stdout.strip():
        return [], "no GPU: nvidia-smi: " + (asked.stdout.strip() or "no device")
    return [dict(zip(fields, line.split(", "))) for line in asked.stdout.strip().splitlines()], None


RUNNING = set()  # processes, each the first of its session


def stop(process):
    """Ends what a test started; mpirun is told first, as it alone knows its ranks."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:  # it is in the driver, which does not return: the next one runs beside it
            print(f"process {process.pid} does not end", flush=True)


def run_command(command, bundle, allowed_s, environment=None, apart=False):
    """Runs a command in an empty folder, and ends it with all that it started when its time is over. Its exit code (None: it was ended),
    what it said on standard output and, apart from that or among it, on standard error, and its seconds. OSError if it does not start."""
    command = [word.replace("{bundle}", bundle) for word in command]
    more = {key: value.replace("{bundle}", bundle) for key, value in (environment or {}).items()}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **more}, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=errors if apart else subprocess.STDOUT, start_new_session=True)
        RUNNING.add(process)
        try:
            code = process.wait(allowed_s)
        except subprocess.TimeoutExpired:
            code = None
            stop(process)
        finally:
            RUNNING.discard(process)
        seconds = time.monotonic() - begin
        output.seek(0)
        errors.seek(0)
        return code, output.read().decode(errors="replace"), errors.read().decode(errors="replace"), seconds


def run(test, bundle, most_s):
    """Runs one test: its entry of the report. `most_s`: what is left of its stage."""
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
        if test.get("figures"):
            entry["output"] = lines[-OUTPUT_LINES:]
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


def parsed(text):
    """JSON, or null where it is none."""
    try:
        return json.loads(text or "null")
    except ValueError:
        return None


def checklist(bundle, small):
    """What is asked of a GPU first: entries as those of a list of tests. The script itself names them."""
    script = os.path.join(bundle, "tests", "support", "checklist.sh")
    names = (answer("bash", script, "list") or "").split()
    return [{"name": "checklist." + name, "labels": ["gpu"], "timeout_s": CHECK_TIMEOUT_S, "skip_code": 77, "environment": {},
             "command": ["bash", script, name] + (["small"] if small else []), "figures": True} for name in names]


class Report:
    """What was found so far. It is written after each entry: whatever ends this program, the rest is there."""

    def __init__(self, path, bundle, limit_s, jobs):
        self.path, self.bundle, self.limit_s = path, bundle, limit_s
        self.lock = threading.Lock()
        self.begin = time.monotonic()
        self.gpus, self.no_gpu = find_gpus()
        self.jobs = max(1, jobs if jobs is not None else 4 if self.gpus and all(memory_mib(gpu) >= 64 << 10 for gpu in self.gpus) else 1)
        self.checks, self.tests, self.measured = [], [], []
        self.about = {"versions": {"lockstep": answer("lockstep", "--version"), "system": answer("uname", "-sr"),
                                   "libc": " ".join(platform.libc_ver()), "python": platform.python_version()},
                      "doctor": parsed(answer("lockstep", "doctor", "--json"))}

    def left_s(self, share=1.0):
        """Until that share of the time is over."""
        return share * self.limit_s - (time.monotonic() - self.begin)

    def count(self):
        return {kind: sum(entry["result"] == kind for entry in self.checks + self.tests) for kind in ("passed", "failed", "skipped")}

    def write(self):
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump({
                "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "gpus": self.gpus,
                **({"no_gpu": self.no_gpu} if self.no_gpu else {}),
                **self.about,
                "seconds": round(time.monotonic() - self.begin, 1),
                **self.count(),
                "checklist": self.checks,
                "tests": self.tests,
                "benchmarks": self.measured,
            }, file, indent=1)
            file.write("\n")

    def run_all(self, chosen, results, share):
        """Tests, so many at once, whatever becomes of each. Their results are in the order in which they end."""
        def run_one(test):
            left_s = self.left_s(share)
            if "gpu" in test["labels"] and self.no_gpu:
                entry = {"name": test["name"], "result": "skipped", "reason": self.no_gpu, "seconds": 0.0}
            elif left_s <= 0:
                entry = {"name": test["name"], "result": "skipped", "reason": "not reached: --limit-s", "seconds": 0.0}
            else:
                entry = run(test, self.bundle, left_s)
            with self.lock:
                results.append(entry)
                self.write()
                print(f"{len(results)}/{len(chosen)} {entry['result']:7} {entry['seconds']:6.1f} s  {entry['name']}  "
                      f"{entry.get('reason', '')}", flush=True)
                for line in entry.get("output", []):
                    print("    " + line)

        pool = concurrent.futures.ThreadPoolExecutor(self.jobs)
        try:
            for done in [pool.submit(run_one, test) for test in chosen]:
                done.result()
        except BaseException:  # Ctrl-C, or a report that cannot be written
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(RUNNING):
                stop(process)
            raise
        pool.shutdown()

    def measure(self):
        for command in BENCHMARKS:
            left_s = self.left_s()
            if left_s <= 0:
                self.measured.append({"command": " ".join(command), "result": None, "output": ["not reached: --limit-s"], "seconds": 0.0})
                continue
            self.measured.append(benchmark(command, self.bundle, left_s))
            self.write()
            result = self.measured[-1]["result"]
            step_ms = result.get("step_ms", float("nan")) if isinstance(result, dict) else float("nan")
            print(f"{step_ms:9.2f} ms a step  {self.measured[-1]['command']}", flush=True)


def main():
    parser = argparse.ArgumentParser(prog="gpu.sh", description="Runs the GPU tests of a bundle and writes one JSON report.")
    parser.add_argument("bundle", help=argparse.SUPPRESS)
    parser.add_argument("--cpu", action="store_true", help="the MPI tests at 1, 2 and 4 ranks as well, which need no GPU")
    parser.add_argument("--no-benchmarks", action="store_true", help="no measurements")
    parser.add_argument("--checklist", choices=["real", "small", "no"], default="real",
                        help="before the tests: of a GPT-2 124M (real), or of the size for an emulated GPU (small)")
    parser.add_argument("--jobs", type=int, metavar="N",
                        help="so many checks and tests at once (4 on GPUs of 64 GiB and more, else 1); measurements are alone")
    parser.add_argument("--match", metavar="REGEX", help="these tests instead, whatever they need")
    parser.add_argument("--limit-s", type=float, default=430, help="nothing starts later, and nothing runs longer (430)")
    parser.add_argument("--report", default="report.json", help="where the report goes (report.json)")
    options = parser.parse_args()

    try:
        open(options.report, "a", encoding="utf-8").close()  # now, not after the tests
    except OSError as error:
        sys.exit(complain(f"--report: {options.report}: {error.strerror}"))
    with open(os.path.join(options.bundle, "tests", "list.json"), encoding="utf-8") as file:
        listed = json.load(file)
    report = Report(options.report, options.bundle, options.limit_s, options.jobs)
    print(report.no_gpu or "GPU: " + "; ".join(f"{gpu['name']}, driver {gpu['driver_version']}" for gpu in report.gpus))
    if options.match:
        report.run_all([test for test in listed if re.search(options.match, test["name"])], report.tests, 1)
    else:
        chosen = [test for test in listed if "gpu" in test["labels"]]
        if not chosen:
            print("this bundle was built without CUDA: it has no GPU tests")
        if options.cpu:
            chosen += [test for test in listed if "gpu" not in test["labels"] and re.search(CPU_TESTS, test["name"])]
        if options.checklist != "no":
            report.run_all(checklist(options.bundle, options.checklist == "small"), report.checks, CHECKLIST_ENDS)
        measures = not report.no_gpu and not options.no_benchmarks
        capped = [{**test, "timeout_s": min(test["timeout_s"], TEST_TIMEOUT_S)} for test in chosen]
        report.run_all(capped, report.tests, TESTS_END if measures else 1)
        if measures:
            report.measure()
    report.write()
    count = report.count()
    print(", ".join(f"{number} {kind}" for kind, number in count.items()) + f"; report: {options.report}")
    sys.exit(1 if count["failed"] else 0)


main()
