"""Runs a plan (plans.py) in a bundle and writes one JSON report: see tests/gpu.sh."""
import argparse
import concurrent.futures
import dataclasses
import datetime
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

import plans

OUTPUT_LINES = 30  # of a failed entry, in the report
ARCHIVE_BYTES, ARCHIVE_PARTS = 15 << 20, 3
LOG_BYTES = 1 << 20  # of one entry, in the archive


def answer(*command):
    """Standard output of a command; None where there is none."""
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, text=True).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None


def parsed(text):
    """JSON, that of the last line where not all is, or None."""
    for candidate in (text or "", ((text or "").strip().splitlines() or [""])[-1]):
        try:
            return json.loads(candidate)
        except ValueError:
            pass
    return None


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


def memory_mib(gpus):
    """Of the smallest. nvidia-smi says "81559 MiB"."""
    return min((int(re.match(r"\d*", gpu.get("memory.total", "")).group() or 0) for gpu in gpus), default=0)


RUNNING = set()  # processes, each the first of its session


def stop(process):
    """Ends what an entry started; mpirun is told first, as it alone knows its ranks."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:  # it is in the driver, which does not return: the next one runs beside it
            print(f"process {process.pid} does not end", flush=True)


def run_command(command, environment, allowed_s, apart):
    """Runs a command in an empty folder, and ends it with all that it started when its time is over. Its exit code (None: it was ended),
    what it said on standard output and, apart from that or among it, on standard error, and its seconds. OSError if it does not start."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=output,
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


class Run:
    """A plan on this machine, and its report. That is written after each entry: whatever ends this program, the rest is there."""

    def __init__(self, plan, options, gpus, no_gpu):
        self.plan, self.options, self.gpus, self.no_gpu = plan, options, gpus, no_gpu
        self.limit_s = options.limit_s if options.limit_s is not None else plan.limit_s
        self.lock = threading.Lock()
        self.background = []  # pools
        self.results = {stage.name: [] for stage in plan.stages}
        self.about = {"plan": plan.name, "size": options.checklist, "gpus": gpus, **({"no_gpu": no_gpu} if no_gpu else {}),
                      "versions": {"lockstep": answer("lockstep", "--version"), "system": answer("uname", "-sr"),
                                   "libc": " ".join(platform.libc_ver()), "python": platform.python_version()},
                      "doctor": parsed(answer("lockstep", "doctor", "--json"))}
        self.logs = os.path.join(options.work, plan.name) if plan.name else None
        if self.logs:
            os.makedirs(self.logs, exist_ok=True)
            self.take_over()

    def take_over(self):
        """What an earlier start has done, on the same GPU and with the same version, is not done again."""
        earlier = read_state(self.options, self.plan.name)
        if any(earlier.get(key) != self.about[key] for key in ("gpus", "versions", "size")):
            if earlier:
                print("the earlier results are of another GPU, version or size: all is done again")
            return
        named = {entry["name"]: entry for stage in earlier["stages"] for entry in stage["entries"]}
        for stage in self.plan.stages:
            self.results[stage.name] = [{**named[entry.name], "earlier": True} for entry in stage.entries
                                        if named.get(entry.name, {}).get("result") == "passed"]
        number = sum(len(stage.entries) for stage in self.plan.stages)
        print(f"{sum(map(len, self.results.values()))} of {number} entries are done already")

    def left_s(self, share=1.0):
        """Until that share of the time is over."""
        return share * self.limit_s - (time.monotonic() - self.options.begin)

    def filled(self, text):
        return text.replace("{bundle}", self.options.bundle).replace("{work}", self.options.work)

    def run_entry(self, entry, stage):
        """An entry of the report."""
        record = {"name": entry.name, "result": "skipped"}
        if entry.json:
            record["command"] = " ".join(entry.command).replace("{bundle}/", "")
        left_s = self.left_s(stage.ends)
        record["seconds"] = 0.0
        if entry.gpu and self.no_gpu:
            return {**record, "reason": self.no_gpu}
        if entry.needs and not shutil.which(entry.needs):
            return {**record, "reason": f"{entry.needs} is not here"}
        if left_s <= 0:
            return {**record, "reason": "not reached: --limit-s", "late": True}
        allowed_s = min(entry.limit_s, left_s)
        environment = {key: self.filled(value) for key, value in entry.environment.items()}
        try:
            code, output, errors, seconds = run_command([self.filled(word) for word in entry.command], environment, allowed_s, entry.json)
        except OSError as error:
            return {**record, "result": "failed", "reason": f"{entry.command[0]}: {error.strerror}"}
        record["seconds"] = round(seconds, 2)
        lines = (errors + output).splitlines()
        if self.logs:
            with open(os.path.join(self.logs, f"{stage.name}.{entry.name}.log"), "w", encoding="utf-8") as file:
                file.write((errors + output)[-LOG_BYTES:])
        figures = parsed(output) if entry.json and code == 0 else None
        if code == 0 and (isinstance(figures, dict) or not entry.json):
            record["result"] = "passed"
            if entry.json:
                record["figures"] = figures
            if entry.shows:
                record["output"] = lines[-OUTPUT_LINES:]
        elif code == entry.skip_code:
            record["reason"] = next((line for line in reversed(lines) if line.strip()), "without a reason")
        elif code is None and left_s < entry.limit_s:
            record.update(reason=f"cut off after {allowed_s:.1f} s: --limit-s was reached", late=True)
        else:
            reason = f"not done after {allowed_s:.1f} s" if code is None else f"exit code {code}" if code else "it printed no JSON"
            record.update(result="failed", reason=reason, output=lines[-OUTPUT_LINES:])
        return record

    def run_stage(self, stage, wanted):
        """Those of its entries that are wanted, whatever becomes of each. Results are in the order in which they end."""
        results = self.results[stage.name]
        entries = [entry for entry in stage.entries if wanted(next((done for done in results if done["name"] == entry.name), None))]
        if not entries:
            return

        def run_one(entry):
            record = self.run_entry(entry, stage)
            with self.lock:
                results[:] = [done for done in results if done["name"] != entry.name] + [record]
                self.write()
                figure = (record.get("figures") or {}).get("step_ms")
                print(f"{len(results)}/{len(stage.entries)} {record['result']:7} {record['seconds']:6.1f} s  {entry.name}  "
                      + (f"{figure:.2f} ms a step" if isinstance(figure, (int, float)) else record.get("reason", "")), flush=True)
                for line in record.get("output", []):
                    print("    " + line)

        if stage.jobs == 1 and not stage.background:
            self.join()
        pool = concurrent.futures.ThreadPoolExecutor(stage.jobs)
        self.background.append((pool, [pool.submit(run_one, entry) for entry in entries]))
        if not stage.background:
            self.join(self.background[-1:])

    def join(self, pools=None):
        for pool, pending in pools if pools is not None else self.background:
            for done in pending:
                done.result()  # a report that cannot be written ends this program
            pool.shutdown()

    def run(self):
        beside = None
        try:
            if self.plan.beside and not self.no_gpu:
                command, file = self.plan.beside
                with open(os.path.join(self.logs, file), "a", encoding="utf-8") as output:
                    beside = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True)
            for stage in self.plan.stages:
                self.run_stage(stage, lambda done: not done or done["result"] != "passed")
            self.join()
            if self.plan.name:  # what a stage had no time for has what others have left
                last = self.plan.stages[-1].ends
                for stage in self.plan.stages:
                    if self.left_s(last) > 0 and not stage.background:
                        self.run_stage(dataclasses.replace(stage, ends=last), lambda done: done and done.get("late"))
        except BaseException:  # Ctrl-C, or a report that cannot be written
            for pool, _ in self.background:
                pool.shutdown(wait=False, cancel_futures=True)
            for process in list(RUNNING):
                stop(process)
            raise
        finally:
            if beside:
                stop(beside)
        self.write()

    def count(self):
        counted = [entry for stage in self.plan.stages if stage.counts for entry in self.results[stage.name]]
        return {kind: sum(entry["result"] == kind for entry in counted) for kind in ("passed", "failed", "skipped")}

    def ratios(self):
        """Of PyTorch's step to ours, of medians, for each workload that has both."""
        times = {}
        for entry in (entry for entries in self.results.values() for entry in entries):
            named = re.fullmatch(r"(.+)\.(lockstep|pytorch)(\.\d)?", entry["name"])
            step_ms = (entry.get("figures") or {}).get("step_ms")
            if named and step_ms:
                times.setdefault(named[1], {}).setdefault(named[2], []).append(step_ms)
        return {workload: round(statistics.median(of["pytorch"]) / statistics.median(of["lockstep"]), 4)
                for workload, of in times.items() if len(of) == 2}

    def write(self):
        stages = [{"name": stage.name, "yields": stage.yields, "entries": self.results[stage.name]} for stage in self.plan.stages]
        text = json.dumps({"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), **self.about,
                           "seconds": round(time.monotonic() - self.options.begin, 1), "limit_s": self.limit_s, **self.count(),
                           "pytorch_to_lockstep": self.ratios(), "stages": stages}, indent=1)
        for path in [self.options.report] + ([state_path(self.options, self.plan.name)] if self.plan.name else []):
            with open(path + ".new", "w", encoding="utf-8") as file:
                file.write(text + "\n")
            os.replace(path + ".new", path)  # never half a report

    def archive(self):
        """Beside the report: the logs of a plan, and what its peers compiled; in files that are small enough to travel."""
        root = re.sub(r"\.json$", "", self.options.report)
        for name, folder in ((root, self.logs), (root + "-compiled", os.path.join(self.options.work, "compiled"))):
            if not os.path.isdir(folder):
                continue
            with tempfile.TemporaryFile() as whole:
                with tarfile.open(fileobj=whole, mode="w:gz", compresslevel=6) as archive:
                    archive.add(folder, os.path.basename(folder))
                parts = -(-whole.tell() // ARCHIVE_BYTES)
                if parts > ARCHIVE_PARTS:
                    print(f"{folder} has more than {ARCHIVE_PARTS} x {ARCHIVE_BYTES >> 20} MiB and is left out")
                    continue
                whole.seek(0)
                for part in range(parts):
                    with open(f"{name}.tar.gz" + (f".{part}" if parts > 1 else ""), "wb") as file:
                        file.write(whole.read(ARCHIVE_BYTES))


def state_path(options, name):
    return os.path.join(options.work, name, "report.json")


def read_state(options, name):
    """The report of an earlier start of that plan, or nothing."""
    try:
        with open(state_path(options, name), encoding="utf-8") as file:
            return parsed(file.read()) or {}
    except OSError:
        return {}


def complain(text):
    """Says what is wrong; the exit code."""
    print("gpu.sh: " + text, file=sys.stderr)
    return 2


def choose_plan(options, gpus, no_gpu):
    with open(os.path.join(options.bundle, "tests", "list.json"), encoding="utf-8") as file:
        listed = json.load(file)
    mib = memory_mib(gpus)
    jobs = max(1, options.jobs if options.jobs is not None else 4 if mib >= 64 << 10 else 1)
    machine = plans.Machine(options.bundle, listed, mib, jobs, options.checklist)
    if options.plan == "figures":
        return plans.figures(machine)
    if options.plan == "explain":
        earlier = read_state(options, "figures").get("stages", [])
        return plans.explain(machine, {entry["name"]: entry for stage in earlier for entry in stage["entries"]})
    if options.match:
        return plans.matching(machine, options.match)
    if not any("gpu" in test["labels"] for test in listed):
        print("this bundle was built without CUDA: it has no GPU tests")
    return plans.suites(machine, options.cpu, not no_gpu and not options.no_benchmarks)


def main():
    parser = argparse.ArgumentParser(prog="gpu.sh", description="Runs the GPU tests of a bundle and writes one JSON report.")
    parser.add_argument("bundle", help=argparse.SUPPRESS)
    parser.add_argument("--plan", choices=["figures", "explain"], help="all figures of one GPU; what they leave open")
    parser.add_argument("--cpu", action="store_true", help="the MPI tests at 1, 2 and 4 ranks as well, which need no GPU")
    parser.add_argument("--no-benchmarks", action="store_true", help="no measurements")
    parser.add_argument("--checklist", choices=["real", "small", "no"], default="real",
                        help="before the tests: of a GPT-2 124M (real), or of the size for an emulated GPU (small)")
    parser.add_argument("--jobs", type=int, metavar="N",
                        help="so many checks and tests at once (4 on GPUs of 64 GiB and more, else 1); measurements are alone")
    parser.add_argument("--match", metavar="REGEX", help="these tests instead, whatever they need")
    parser.add_argument("--limit-s", type=float, help="nothing starts later, and nothing runs longer (430; figures: 590, explain: 120)")
    parser.add_argument("--report", default="report.json", help="where the report goes (report.json)")
    parser.add_argument("--work", help="where a plan keeps what it has done (BUNDLE/work)")
    options = parser.parse_args()
    options.begin = time.monotonic()
    options.work = os.path.abspath(options.work or os.path.join(options.bundle, "work"))

    try:
        open(options.report, "a", encoding="utf-8").close()  # now, not after the tests
    except OSError as error:
        sys.exit(complain(f"--report: {options.report}: {error.strerror}"))
    gpus, no_gpu = find_gpus()
    print(no_gpu or "GPU: " + "; ".join(f"{gpu['name']}, driver {gpu['driver_version']}" for gpu in gpus))
    plan = choose_plan(options, gpus, no_gpu)
    run = Run(plan, options, gpus, no_gpu)
    run.run()
    for workload, ratio in run.ratios().items():
        print(f"{workload}: PyTorch's step takes {ratio:.3f} times ours")
    if plan.name:
        run.archive()
    count = run.count()
    print(", ".join(f"{number} {kind}" for kind, number in count.items()) + f"; report: {options.report}")
    sys.exit(1 if count["failed"] else 0)


main()
