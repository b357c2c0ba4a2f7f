#!/usr/bin/env python3
"""Opens pages in headless Chromium, at desktop and phone width, light and dark, and prints one: browser.py DRAWN PAGE...

Prints a line for each fault: a message of the console, a request to the network, a page wider than the window, text that is too small or
has too little contrast, labels of an axis upon each other or cut off, an axis without a name. Leaves each page as its script has drawn it
in the folder DRAWN. Exit code 0: no fault; 1: some.
"""
import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

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

# The pointer: values, a zoom and back. A row of a table.
POINTER = """(() => {
  for (const svg of document.querySelectorAll("figure.chart > svg")) { const b = svg.getBoundingClientRect();
    const at = (kind, part) => svg.dispatchEvent(new PointerEvent(kind, { clientX: b.left + b.width * part, clientY: b.top + b.height / 2, button: 0, pointerId: 1, bubbles: true }));
    svg.setPointerCapture = () => {};
    at("pointermove", 0.4); at("pointerdown", 0.3); at("pointermove", 0.7); at("pointerup", 0.7); svg.dispatchEvent(new MouseEvent("dblclick")); at("pointerleave", 0.7); }
  for (const head of document.querySelectorAll("table.sortable th")) { head.click(); head.click(); }
  for (const row of [...document.querySelectorAll("tr[data-run]")].slice(0, 2)) { row.click(); row.click(); }
})()"""

# All pages, each in a frame of the width, whose end of loading is awaited by this page; what is found becomes its text.
ALL = """<!doctype html><meta charset="utf-8"><body>%(frames)s<script>
addEventListener("load", () => {
  const found = {};
  const overTime = (page, clock) => {  // the x axis as time, and back
    if (!clock) return [];
    const before = page.document.querySelector("main").outerHTML;
    clock.click();
    const faults = page.eval(%(faults)s).map((fault) => "over time: " + fault);
    if (!page.document.querySelector(".grid").textContent.includes("since the start")) faults.push("over time: the axis does not say so");
    clock.click();
    return faults.concat(page.document.querySelector("main").outerHTML === before ? [] : "over steps again: other than before");
  };
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentWindow, clock = page.document.querySelector("#clock"), requests = page.performance.getEntriesByType("resource").filter((e) => !/^(data|about|blob):/.test(e.name));
    found[frame.title] = { faults: page.eval(%(faults)s).concat(overTime(page, clock), requests.map((e) => "a request: " + e.name)), drawn: page.document.querySelector("main").outerHTML };
    page.eval(%(pointer)s);
  }
  document.body.textContent = JSON.stringify(found);
});
</script></body>"""


def chromium(*arguments):
    """What it prints, and the messages of the console. The folder with its settings is new, as is each page."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        done = subprocess.run([program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                               "--hide-scrollbars", f"--user-data-dir={profile}", "--enable-logging=stderr", *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True)
    return done.stdout, re.findall(r'CONSOLE[^"]*"(.*)", source', done.stderr)


def main(folder, *paths):
    pages = {pathlib.Path(path).stem: pathlib.Path(path).read_text(encoding="utf-8") for path in paths}
    faults = []
    for device, (width, height) in WIDTHS.items():
        for scheme, number in ("light", 1), ("dark", 0):
            with tempfile.TemporaryDirectory() as scratch:
                path = pathlib.Path(scratch, "all.html")
                frames = "".join(f'<iframe title="{name}" style="width: {width}px; height: {height}px; border: 0" srcdoc="{html.escape(text)}"></iframe>'
                                 for name, text in pages.items())
                path.write_text(ALL % {"frames": frames, "faults": json.dumps(FAULTS), "pointer": json.dumps(POINTER)}, encoding="utf-8")
                text, console = chromium(f"--blink-settings=preferredColorScheme={number}", f"--window-size={width + 100},{height + 100}",
                                         "--dump-dom", path.as_uri())
            found = json.loads(html.unescape(re.search(r"<body>(.*)</body>", text, re.DOTALL)[1]))
            faults += [f"{device}, {scheme}: console: {message}" for message in console]
            assert found.keys() == pages.keys(), found.keys()
            for name, seen in found.items():
                faults += [f"{name}, {device}, {scheme}: {fault}" for fault in seen["faults"]]
                if (device, scheme) == ("desktop", "light"):
                    pathlib.Path(folder, f"{name}.html").write_text(seen["drawn"], encoding="utf-8")
    pdf = pathlib.Path(folder, "page.pdf")
    chromium(f"--print-to-pdf={pdf.resolve()}", pathlib.Path(paths[0]).resolve().as_uri())
    if not pdf.read_bytes().startswith(b"%PDF") or pdf.stat().st_size < 2000:
        faults.append(f"{paths[0]}: no PDF file")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
