#!/usr/bin/env python3
"""Opens pages in headless Chromium, at desktop and phone width, light and dark, and as a PDF file: browser.py [--shots DIR] [--drawn DIR] PAGE...

Prints a line for each fault: an error of the console, a request to the network, a page wider than the window, text that is too small or
has too little contrast, labels of an axis upon each other or cut off, an axis without a name. Prints how long each takes to open.
browser.py --drawn DIR also leaves each page as its script has drawn it in DIR. Exit code 0: no fault; 1: some; 77: there is no Chromium.
"""
import argparse
import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}

FAULTS = r"""(() => {
  const faults = [], root = document.documentElement;
  if (root.scrollWidth > root.clientWidth + 1) {
    const wide = [...document.querySelectorAll("main *")].find((e) => e.getBoundingClientRect().right > root.clientWidth + 1 && !e.closest(".scroll, .strip"));
    faults.push(`wider than the window: ${root.scrollWidth} of ${root.clientWidth}: ${wide ? wide.outerHTML.slice(0, 90) : ""}`);
  }
  const rgb = (c) => c.match(/[\d.]+/g).map(Number);
  const light = (c) => { const [r, g, b] = rgb(c).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const contrast = (a, b) => { const [p, q] = [light(a), light(b)].sort((x, y) => y - x); return (p + 0.05) / (q + 0.05); };
  const paper = getComputedStyle(document.body).backgroundColor;
  const seen = new Set(), say = (text) => { if (!seen.has(text)) { seen.add(text); faults.push(text); } };
  for (const e of document.querySelectorAll("main *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()), box = e.getBoundingClientRect();
    if (!own || e.tagName === "TITLE" || !box.width) continue;
    const style = getComputedStyle(e), svg = e.ownerSVGElement;
    const colour = svg ? style.fill : style.color, scale = svg ? e.getScreenCTM().a : 1, size = parseFloat(style.fontSize) * scale;
    if (size < 11) say(`text of ${size.toFixed(1)} px: ${e.textContent.slice(0, 40)}`);
    if (contrast(colour, paper) < 4.5) say(`contrast ${contrast(colour, paper).toFixed(1)} of text: ${e.textContent.slice(0, 40)}`);
  }
  for (const line of document.querySelectorAll(".curves path:not(.raw):not(.rest)"))
    if (contrast(getComputedStyle(line).stroke, paper) < 2.5) say(`contrast ${contrast(getComputedStyle(line).stroke, paper).toFixed(1)} of a curve: ${line.getAttribute("class")}`);
  for (const chart of document.querySelectorAll("figure.chart")) {
    const title = chart.querySelector("figcaption b").textContent, frame = chart.querySelector("svg").getBoundingClientRect();
    if (!chart.querySelector("text.x.name")?.textContent) say(`${title}: the x axis has no name`);
    for (const kind of ["x:not(.name)", "y"]) {
      const boxes = [...chart.querySelectorAll(`.grid text.${kind}`)].map((t) => t.getBoundingClientRect());
      if (boxes.length < 2) say(`${title}: ${boxes.length} labels on axis ${kind[0]}`);
      for (const b of boxes) if (b.left < frame.left - 0.5 || b.right > frame.right + 0.5 || b.top < frame.top - 0.5 || b.bottom > frame.bottom + 0.5) say(`${title}: a label of axis ${kind[0]} is cut off`);
      boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => { if (a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom) say(`${title}: labels of axis ${kind[0]} lie upon each other`); }));
    }
  }
  const data = JSON.parse(document.getElementById("data").textContent), parts = data.sections.flatMap((s) => s.parts);
  const count = (kind) => parts.filter((p) => p[kind]), drawn = (all) => document.querySelectorAll(all).length;
  if (drawn("section") !== data.sections.length) say(`${drawn("section")} of ${data.sections.length} sections`);
  const charts = count("charts").flatMap((p) => p.charts.charts), wanted = charts.reduce((n, c) => n + c.curves.length, 0);
  if (!count("results").length && drawn("figure.chart") !== charts.length) say(`${drawn("figure.chart")} of ${charts.length} charts`);
  if (!count("results").length && drawn(".curves path:not(.at)") !== wanted) say(`${drawn(".curves path:not(.at)")} of ${wanted} curves`);
  if (drawn("tr[data-run]") !== count("table").reduce((n, p) => n + (p.table.runs ?? []).length, 0)) say(`${drawn("tr[data-run]")} rows of runs`);
  for (const path of document.querySelectorAll(".curves path")) if (/NaN|Infinity|undefined/.test(path.getAttribute("d"))) say("a curve without numbers: " + path.dataset.label);
  for (const e of document.querySelectorAll("main td, main li, main b, main span")) if (/^(NaN|undefined|null|\[object Object\])$/.test(e.textContent)) say("no text: " + e.outerHTML);
  for (const bars of document.querySelectorAll(".bars")) {
    const frame = bars.getBoundingClientRect(), name = bars.getAttribute("aria-label");
    if (!bars.querySelector(".unit")?.textContent) say(`${name}: the axis has no name`);
    for (const t of bars.querySelectorAll("b, u")) { const b = t.getBoundingClientRect(); if (b.left < frame.left - 1 || b.right > frame.right + 12) say(`${name}: a label is cut off: ${t.textContent}`); }
    const ticks = [...bars.querySelectorAll("u")].map((t) => t.getBoundingClientRect());
    ticks.slice(1).forEach((b, i) => { if (b.left < ticks[i].right) say(`${name}: labels of the axis lie upon each other`); });
  }
  return faults;
})()"""


class Browser:
    """Chromium under its pipe: JSON messages that end with a zero byte."""

    def __init__(self, program, profile):
        to_browser, self.write_fd = os.pipe()
        self.read_fd, from_browser = os.pipe()

        def pipes():
            kept = os.dup(to_browser), os.dup(from_browser)
            os.dup2(kept[0], 3)
            os.dup2(kept[1], 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
             "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=pipes, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.last, self.session, self.events = b"", 0, None, []

    def receive(self):
        while b"\0" not in self.buffer:
            more = os.read(self.read_fd, 1 << 20)
            if not more:
                sys.exit("Chromium has ended")
            self.buffer += more
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write_fd, data):]
        while True:
            answer = self.receive()
            if answer.get("id") == self.last:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method):
        while True:
            for event in self.events:
                if event.get("method") == method:
                    return
            self.events.append(self.receive())

    def attach(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def value_of(self, script):
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"]["value"]

    def open(self, page):
        """Returns the seconds until the page is drawn, and what went wrong meanwhile."""
        self.events.clear()
        start = time.monotonic()
        self.call("Page.navigate", url=pathlib.Path(page).resolve().as_uri())
        self.wait_for("Page.loadEventFired")
        self.call("Runtime.evaluate", awaitPromise=True,
                  expression="new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return time.monotonic() - start, self.said()

    def said(self):
        faults = []
        for event in self.events:
            method, what = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                faults.append("script: " + what["exceptionDetails"].get("exception", {}).get("description", "exception").split("\n")[0])
            if method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
                faults.append("console: " + what["entry"]["text"])
            if method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
                faults.append("console: " + str(what["args"]))
            if method == "Network.requestWillBeSent" and not what["request"]["url"].startswith(("file:", "data:", "about:")):
                faults.append("a request: " + what["request"]["url"])
        return faults


def look_at(browser, page, shots, drawn):
    faults = []
    stem = pathlib.Path(page).stem
    for device, (width, height) in WIDTHS.items():
        for scheme in "light", "dark":
            browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=device == "phone")
            browser.call("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": scheme}])
            opening_s, said = browser.open(page)
            said += browser.value_of(FAULTS)
            if drawn and (device, scheme) == ("desktop", "light"):
                pathlib.Path(drawn, f"{stem}.html").write_text(browser.value_of("document.querySelector('main').outerHTML"))
            if shots:
                size = browser.call("Page.getLayoutMetrics")["cssContentSize"]
                shot = browser.call("Page.captureScreenshot", captureBeyondViewport=True,
                                    clip={"x": 0, "y": 0, "width": width, "height": min(size["height"], 12000), "scale": 1})
                pathlib.Path(shots, f"{stem}-{device}-{scheme}.png").write_bytes(base64.b64decode(shot["data"]))
            # The pointer: values, a zoom and back. A row of a table.
            browser.call("Runtime.evaluate", expression="""(() => {
              for (const svg of document.querySelectorAll("figure.chart > svg")) { const b = svg.getBoundingClientRect();
                const at = (kind, part) => svg.dispatchEvent(new PointerEvent(kind, { clientX: b.left + b.width * part, clientY: b.top + b.height / 2, button: 0, pointerId: 1, bubbles: true }));
                svg.setPointerCapture = () => {};
                at("pointermove", 0.4); at("pointerdown", 0.3); at("pointermove", 0.7); at("pointerup", 0.7); svg.dispatchEvent(new MouseEvent("dblclick")); at("pointerleave", 0.7); }
              for (const head of document.querySelectorAll("table.sortable th")) { head.click(); head.click(); }
              for (const row of [...document.querySelectorAll("tr[data-run]")].slice(0, 2)) { row.click(); row.click(); }
              scrollTo(0, 0); })()""")
            said += [fault for fault in browser.said() if fault not in said]
            faults += [f"{page}, {device}, {scheme}: {fault}" for fault in said]
            print(f"{stem}, {device}, {scheme}: opens in {opening_s:.2f} s", file=sys.stderr)
    browser.call("Emulation.clearDeviceMetricsOverride")
    browser.call("Emulation.setEmulatedMedia", media="", features=[])
    browser.open(page)
    pdf = base64.b64decode(browser.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)["data"])
    if not pdf.startswith(b"%PDF") or len(pdf) < 2000:
        faults.append(f"{page}: no PDF file")
    if shots:
        pathlib.Path(shots, f"{stem}.pdf").write_bytes(pdf)
    return faults


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shots", help="folder for PNG and PDF files")
    parser.add_argument("--drawn", help="folder for what the script of each page has drawn")
    parser.add_argument("pages", nargs="*")
    arguments = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        print("no Chromium is installed (package chromium): pages are not opened")
        return 77
    faults = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(program, profile)
        try:
            browser.attach()
            for page in arguments.pages:
                faults += look_at(browser, page, arguments.shots, arguments.drawn)
        finally:
            browser.process.terminate()
            browser.process.wait()
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
