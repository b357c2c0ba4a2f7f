"use strict";
// Draws the document in #data: sections with a title and parts. A part is an object whose key is a function of `draw`:
//   note, heading      a text
//   charts             charts: title, unit, note, wide, legend, linear (never logarithmic), dots (at each point), x: name, kind (counts or
//                      bytes: logarithmic), curves: label, style, run, x (differences to the previous x), y (values; with unit: differences in
//                      units, starting at low; log: of logarithms), also_x (the axis includes these); marks on all charts: x, kind, text, run;
//                      zooms (all charts together, with a button to reset); times by run: steps, seconds (a button makes them the x axis)
//   bars               rows (names; a row without spans is a heading), spans: row, kind, name, start, length, text; axis, title, unit, key, note
//   table              columns, rows (texts, numbers, null), formats by column ("bytes"), runs (per row: run, style), note, shaded_from (the
//                      first of columns that are shaded by their part of the row's sum)
//   rows               objects with equal keys, as a table
//   results            results of lockstep bench --json: curves over sizes and ranks, bars, a table
//   keys, columns      a table of names and values; several such tables with titles
//   strip              pictures and texts: name, png (base64) or text
(() => {
  const LEVELS = 1e6, RIGHT = 12, TOP = 10, BOTTOM = 38, PAD = 0.06;
  const contents = JSON.parse(document.getElementById("data").textContent), main = document.querySelector("main"), footer = document.querySelector("footer");
  const make = (tag, attributes, parent, text) => {
    const node = document.createElementNS(tag === "svg" ? "http://www.w3.org/2000/svg" : parent.namespaceURI, tag);
    for (const key in attributes) if (attributes[key] !== undefined) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    parent.appendChild(node);
    return node;
  };
  const trim = (v, digits) => String(Number(v.toPrecision(digits)));
  const tickText = (v) => {
    const size = Math.abs(v);
    for (const [unit, letter] of [[1e9, "G"], [1e6, "M"]]) if (size >= unit && size < 1e12) return trim(v / unit, 6) + letter;
    if (size >= 1e4 && size < 1e12) return Number(v.toPrecision(6)).toLocaleString("en");
    if (size > 0 && size < 1e-3) { const p = Math.floor(Math.log10(size) + 1e-9); return trim(v / 10 ** p, 4) + "e" + p; }
    return trim(v, 6);
  };
  const ticks = (low, high, count) => {
    if (!(high > low)) return [low];
    const rough = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(rough)), ratio = rough / power;
    const step = power * (ratio <= 1.5 ? 1 : ratio <= 3.5 ? 2 : ratio <= 7.5 ? 5 : 10), all = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k) all.push(k * step);
    return all;
  };
  const logTicks = (low, high) => {
    const decades = Math.log10(high / low), every = Math.max(1, Math.ceil(decades / 6)), all = [];
    if (decades < 0.7) return ticks(low, high, 4);
    for (let k = Math.floor(Math.log10(low)); k <= Math.log10(high); ++k)
      for (const f of decades > 2 ? [1] : [1, 2, 5]) { const v = f * 10 ** k; if (v >= low && v <= high && k % every === 0) all.push(v); }
    return all;
  };

  const bytesText = (v) => {
    const units = [" B", " KiB", " MiB", " GiB", " TiB"];
    let unit = 0;
    for (; v >= 1024 && unit + 1 < units.length; ++unit) v /= 1024;
    return trim(v, 4) + units[unit];
  };
  const bytesTicks = (low, high, most) => {
    const first = Math.ceil(Math.log2(low) - 1e-9), last = Math.floor(Math.log2(high) + 1e-9), all = [];
    let every = 1;
    while (Math.floor(last / every) - Math.ceil(first / every) + 1 > Math.max(1, most)) every *= 2;
    for (let p = Math.ceil(first / every) * every; p <= last; p += every) all.push(2 ** p);
    return all;
  };

  const number = (v) => Math.abs(v) >= 1000 && Math.abs(v) < 1e15 ? Math.round(v).toLocaleString("en") : trim(v, 4);
  const rangeOf = (all) => { let low = Infinity, high = -Infinity; for (const v of all) { if (v < low) low = v; if (v > high) high = v; } return [low, high]; };
  const wantsLogarithm = (curves, low, high) => {  // whether a linear axis would squeeze most values into one line
    if (low <= 0 || high / low < 5) return false;
    if (high / low > 50) return true;
    const sorted = new Float64Array([].concat(...curves.map((c) => c.y))).sort(), at = (part) => sorted[Math.floor(part * (sorted.length - 1))];
    return high - low > 4 * (at(0.98) - at(0.02));
  };
  const caption = (parent, title, unit) => { const line = make("figcaption", {}, parent); make("b", {}, line, title); line.append(" "); make("span", {}, line, unit); };

  const values = make("div", { id: "values" }, document.body), all = [];
  values.hidden = true;
  const UNITS_OF_TIME = [["d", 864e5], ["h", 36e5], ["min", 6e4], ["s", 1e3]];  // in ms
  const timeAt = ({ steps, seconds }, step) => {  // in ms, between the times that are known
    let low = 0, high = steps.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (steps[middle] <= step) low = middle; else high = middle; }
    const part = steps[high] > steps[low] ? Math.min(1, Math.max(0, (step - steps[low]) / (steps[high] - steps[low]))) : 1;
    return 1e3 * (seconds[low] + part * (seconds[high] - seconds[low]));
  };
  let zoom = null, reset = null;  // the x range of all charts whose x axis has the name zoom.x; null: all
  const setZoom = (range) => { zoom = range; if (reset) reset.hidden = !zoom; all.forEach((c) => c.draw()); };

  // Paths hold integer positions, and a transform places them: x - x0 (on a logarithmic axis in millionths of a power of ten), and y in
  // millionths of [y0, y1] (on a logarithmic axis logarithms).
  class Chart {
    constructor(data, marks, parent) {
      this.x = data.x?.name ?? "step"; this.xkind = data.x?.kind;
      this.figure = make("figure", { class: "chart" + (data.wide ? " wide" : "") }, parent);
      const places = (c) => { let at = 0; return c.x.map((d) => this.xPosition(at += d)); };
      const valuesOf = (c) => { let at = 0; return c.unit ? c.y.map((d) => { const v = c.low + (at += d) * c.unit; return c.log ? 10 ** v : v; }) : c.y; };
      this.dots = data.dots;
      this.curves = data.curves.map((c) => ({ ...c, steps: places(c), y: valuesOf(c), colour: c.style.match(/c\d|rest/)[0], raw: c.style.endsWith(" raw") }));
      this.setRanges(data);
      for (const c of this.curves) c.y = c.y.map((v) => this.place(v));
      caption(this.figure, data.title, [data.unit, this.log && "log scale"].filter(Boolean).join(", "));
      this.svg = make("svg", { role: "img", "aria-label": data.title }, this.figure);
      this.grid = make("g", { class: "grid" }, this.svg); this.plot = make("svg", { class: "plot", y: TOP }, this.svg);
      const lines = make("g", { class: "marks" }, this.plot);
      this.marks = marks.map((mark) => { const path = make("path", { class: "mark " + mark.kind, "data-x": mark.x }, lines); make("title", {}, path, mark.text); return { ...mark, at: mark.x, path }; });
      this.group = make("g", { class: "curves" }, this.plot);
      for (const c of this.curves) {
        c.path = make("path", { class: c.style + (c.x.length > 1 ? "" : " point"), "data-label": c.label, "data-run": c.run }, this.group);
        if (data.dots) c.at = make("path", { class: c.style + " at" }, this.group);
      }
      this.setPaths();
      this.cursor = make("g", { class: "cursor" }, this.plot);
      const entries = this.curves.filter((c) => !c.raw);
      if (data.legend !== false && entries.length > 1) {
        const legend = make("ul", { class: "legend" }, this.figure);
        for (const c of entries) key(legend, c.style, c.label);
      }
      if (data.note) draw.note(data.note, this.figure);
      this.svg.addEventListener("pointermove", (e) => this.move(e));
      this.svg.addEventListener("pointerleave", () => { if (!this.from) all.forEach((c) => c.point(null)); values.hidden = true; });
      this.svg.addEventListener("pointerdown", (e) => { if (e.button === 0) { this.from = this.stepAt(e); this.svg.setPointerCapture(e.pointerId); this.move(e); } });
      this.svg.addEventListener("pointerup", (e) => this.release(e));
      this.svg.addEventListener("pointercancel", () => { this.from = null; this.point(null); values.hidden = true; });
      this.svg.addEventListener("dblclick", () => setZoom(null));
    }
    setX(times) {  // times: by run; null: steps
      const time = (run) => (v) => timeAt(times[run ?? 0], v), all = [];
      if (this.x === "step" || this.x === "time") { this.x = times ? "time" : "step"; this.xkind = times ? "time" : undefined; }
      for (const c of this.curves) {
        const also = (c.also_x ?? []).map((v) => this.xPosition(v)), moved = this.xkind === "time" ? time(c.run) : (v) => v;
        c.x = c.steps.map(moved);
        all.push(c.x[0], c.x[c.x.length - 1], ...also.map(moved));
      }
      for (const mark of this.marks ?? []) mark.at = this.xkind === "time" ? time(mark.run)(mark.x) : mark.x;
      [this.x0, this.x1] = rangeOf(all);
      if (this.x0 === this.x1) { const half = this.xkind ? LEVELS / 2 : 1; this.x0 -= half; this.x1 += half; }
      if (this.dots) {  // a margin, so that dots at the ends are whole
        const part = (this.x1 - this.x0) / 40, margin = this.xkind ? part : Math.ceil(part);
        this.x0 -= margin; this.x1 += margin;
      }
    }
    setPaths() {
      for (const c of this.curves) {
        const x = c.x.map((v) => Math.round(v - this.x0)), y = c.y.map((v) => Math.round(v * LEVELS)), steps = [];  // integers keep paths short
        for (let i = 1; i < x.length; ++i) steps.push(x[i] - x[i - 1], y[i] - y[i - 1]);
        c.path.setAttribute("d", `M${x[0]} ${y[0]}l${steps.join(" ") || "0 0"}`);
        c.at?.setAttribute("d", x.map((v, i) => "M" + v + " " + y[i] + "h0").join(""));  // the round cap draws a dot
      }
    }
    setRanges(data) {
      this.setX(null);
      [this.y0, this.y1] = rangeOf(this.curves.flatMap((c) => rangeOf(c.y)));
      this.log = !data.linear && wantsLogarithm(this.curves, this.y0, this.y1);
      if (this.log) { this.y0 = Math.log10(this.y0); this.y1 = Math.log10(this.y1); }
      if (this.y1 - this.y0 <= 5e-6 * Math.abs(this.y1)) {  // ticks of six digits would be equal: centre a constant
        const half = this.y1 === 0 ? 1 : Math.abs(this.y1) / 2;
        this.y0 -= half; this.y1 += half;
      }
    }
    get unit() { return UNITS_OF_TIME.find(([, ms]) => this.b - this.a > 2 * ms) ?? UNITS_OF_TIME[3]; }
    xValue(position) { return this.xkind === "time" ? position : this.xkind ? 10 ** (position / LEVELS) : position; }
    xPosition(value) { return this.xkind && this.xkind !== "time" ? Math.log10(value) * LEVELS : value; }
    xText(position) { const v = this.xValue(position); return this.xkind === "bytes" ? bytesText(v) : this.xkind === "time" ? trim(v / this.unit[1], 4) + " " + this.unit[0] : Math.round(v).toLocaleString("en"); }
    xTicks(count) {
      if (!this.xkind) return ticks(this.a, this.b, Math.min(count, this.b - this.a));  // whole steps
      if (this.xkind === "time") {
        const ms = this.unit[1];
        let at = [];
        for (let n = count; at.length < 2 && n < count + 8; ++n) at = ticks(this.a / ms, this.b / ms, n);  // an axis has two at least
        return at.map((v) => v * ms);
      }
      if (this.xkind === "bytes") return bytesTicks(this.xValue(this.a), this.xValue(this.b), count);
      const apart = [];
      for (const x of this.curves.flatMap((c) => c.x).sort((p, q) => p - q))
        if (x >= this.a && x <= this.b && (!apart.length || x - this.xPosition(apart[apart.length - 1]) > (this.b - this.a) / (3 * count))) apart.push(Math.round(this.xValue(x)));
      return apart;
    }
    place(v) { return ((this.log ? Math.log10(v) : v) - this.y0) / (this.y1 - this.y0); }
    value(place) { const v = this.y0 + place * (this.y1 - this.y0); return this.log ? 10 ** v : v; }
    measure() {
      this.width = Math.max(260, this.figure.clientWidth); this.height = this.figure.classList.contains("wide") ? Math.max(230, Math.min(330, this.width * 0.4)) : 230;
    }
    draw() {
      this.ph = this.height - TOP - BOTTOM;
      this.a = this.x0; this.b = this.x1; let low = 0, high = 1;
      if (zoom && zoom.x === this.x && zoom.a < this.x1 && zoom.b > this.x0) {
        this.a = zoom.a; this.b = zoom.b; low = Infinity; high = -Infinity;
        for (const c of this.curves) for (let i = 0; i < c.x.length; ++i) if (c.x[i] >= this.a && c.x[i] <= this.b) { low = Math.min(low, c.y[i]); high = Math.max(high, c.y[i]); }
        if (!(high > low)) { const middle = low < Infinity ? low : 0.5; low = middle - 0.02; high = middle + 0.02; }
      }
      const pad = (high - low) * PAD; low -= pad; high += pad;
      const first = this.value(low), last = this.value(high), range = this.y1 - this.y0;
      const yTicks = this.log ? logTicks(first, last) : ticks(first, last, 5);
      this.left = Math.max(62, 12 + 7.6 * Math.max(...yTicks.map((tick) => tickText(tick).length)));
      this.pw = this.width - this.left - RIGHT;
      const sx = this.pw / (this.b - this.a), sy = this.ph / (high - low);
      this.at = (x) => (x - this.a) * sx; this.yAt = (place) => this.ph - (place - low) * sy;
      this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
      this.plot.setAttribute("x", this.left); this.plot.setAttribute("width", this.pw); this.plot.setAttribute("height", this.ph);
      this.group.setAttribute("transform", `matrix(${sx} 0 0 ${-sy / LEVELS} ${(this.x0 - this.a) * sx} ${this.ph + low * sy})`);
      this.grid.textContent = "";
      for (const tick of yTicks) {
        const y = TOP + this.yAt(((this.log ? Math.log10(tick) : tick) - this.y0) / range);
        make("path", { d: `M${this.left} ${y}h${this.pw}` }, this.grid);
        make("text", { x: this.left - 7, y: y + 4, class: "y" }, this.grid, tickText(tick));
      }
      const bottom = TOP + this.ph;
      let labels = [];
      for (let count = Math.max(2, Math.floor(this.pw / 95)); count > 0; --count) {  // as many labels as fit
        labels = this.xTicks(count).map((tick) => {
          const text = this.xkind === "bytes" ? bytesText(tick) : tickText(this.xkind === "time" ? tick / this.unit[1] : tick), x = this.left + this.at(this.xPosition(tick));
          return { x, text, half: text.length * 3.8, at: Math.min(x, this.width - text.length * 3.8) };
        });
        if (labels.every((label, i) => i === 0 || label.at - label.half > labels[i - 1].at + labels[i - 1].half)) break;
      }
      for (const label of labels) {
        make("path", { d: `M${label.x} ${bottom}v5`, class: "tick" }, this.grid);
        make("text", { x: label.at, y: bottom + 18, class: "x" }, this.grid, label.text);
      }
      make("path", { d: `M${this.left} ${bottom}h${this.pw}`, class: "axis" }, this.grid);
      make("text", { x: this.left + this.pw / 2, y: this.height - 4, class: "x name" }, this.grid, this.x + (this.xkind === "time" ? " since the start, " + this.unit[0] : this.xkind ? " (log scale)" : ""));
      for (const mark of this.marks) mark.path.setAttribute("d", `M${this.at(mark.at)} 0V${this.ph}`);
      this.cursor.textContent = "";
    }
    stepAt(e) {
      const box = this.svg.getBoundingClientRect(), x = (e.clientX - box.left) * this.width / box.width - this.left;
      return Math.min(this.b, Math.max(this.a, this.a + x / this.pw * (this.b - this.a)));
    }
    nearest(c, step) {
      let low = 0, high = c.x.length - 1;
      while (high - low > 1) { const middle = (low + high) >> 1; if (c.x[middle] <= step) low = middle; else high = middle; }
      return Math.abs(c.x[low] - step) <= Math.abs(c.x[high] - step) ? low : high;
    }
    point(step) {  // draws a line at this step; returns the points near it
      this.cursor.textContent = "";
      if (step === null || step < this.a || step > this.b) return [];
      const found = [];
      make("path", { d: `M${this.at(step)} 0V${this.ph}` }, this.cursor);
      for (const c of this.curves) {
        const i = this.nearest(c, step);
        if (c.raw || c.x[i] < this.a || c.x[i] > this.b) continue;
        found.push({ c, step: c.x[i], place: c.y[i] });
      }
      for (const f of found.slice(0, 12)) make("circle", { cx: this.at(f.step), cy: this.yAt(f.place), r: 3.5, class: f.c.colour }, this.cursor);
      return found;
    }
    move(e) {
      const step = this.stepAt(e);
      for (const chart of all) if (chart !== this) chart.point(chart.x === this.x ? step : null);
      const found = this.point(step), box = this.svg.getBoundingClientRect();
      if (this.from !== null && this.from !== undefined) {
        const a = this.at(Math.min(this.from, step)), b = this.at(Math.max(this.from, step));
        make("rect", { x: a, y: 0, width: b - a, height: this.ph, class: "select" }, this.cursor);
      }
      const pointer = 1 - ((e.clientY - box.top) * this.height / box.height - TOP) / this.ph;
      if (found.length > 8) found.sort((p, q) => Math.abs(1 - this.yAt(p.place) / this.ph - pointer) - Math.abs(1 - this.yAt(q.place) / this.ph - pointer));
      values.textContent = "";
      make("b", {}, make("div", {}, values), this.x + " " + this.xText(found.length ? found[0].step : step));
      for (const f of found.slice(0, 8)) {
        const row = make("div", {}, values);
        make("i", { class: f.c.colour }, row);
        row.append(trim(this.value(f.place), 5) + "  " + f.c.label + (f.step !== found[0].step ? " (" + this.x + " " + this.xText(f.step) + ")" : ""));
      }
      for (const mark of this.marks) if (Math.abs(this.at(mark.at) - this.at(step)) < 6) make("div", {}, values, mark.text);
      values.hidden = false;
      const left = Math.min(e.clientX + 16, document.documentElement.clientWidth - values.offsetWidth - 8);
      values.style.left = Math.max(8, left) + scrollX + "px";
      values.style.top = e.clientY + scrollY + (e.clientY > innerHeight - values.offsetHeight - 30 ? -values.offsetHeight - 14 : 18) + "px";
    }
    release(e) {
      const from = this.from, to = this.stepAt(e); this.from = null;
      if (from !== null && from !== undefined && Math.abs(this.at(to) - this.at(from)) > 8) { setZoom({ x: this.x, a: Math.min(from, to), b: Math.max(from, to) }); values.hidden = true; }
      else this.move(e);
    }
  }


  const key = (list, style, text) => {
    const line = make("li", {}, list);
    make("path", { class: style, d: "M1 4h20" }, make("svg", { viewBox: "0 0 22 8" }, line));
    line.append(text);
  };
  const words = { resumed: "resumed", preempted: "preempted", slow_rank: "slow rank" };  // the legend of marks
  let focused = null;
  const focus = (run) => {  // highlights this run
    focused = focused === run ? null : run;
    document.querySelectorAll("tr[data-run]").forEach((row) => row.classList.toggle("on", row.dataset.run === String(focused)));
    for (const chart of all) {
      chart.group.classList.toggle("focus", focused !== null);
      for (const c of chart.curves) { c.path.classList.toggle("on", c.run === focused); if (c.run === focused) chart.group.appendChild(c.path); }
    }
  };
  // The end of a key names the unit of its value: "comm_ms" is in ms.
  const UNITS = { ms: ", ms", mb_s: ", MB/s", gb_s: ", GB/s", gflops: ", GFLOP/s", tflops: ", TFLOP/s", bytes: "" };
  const heading = (name) => name.replace(/_?(ms|mb_s|gb_s|gflops|tflops|bytes)$/, (_, unit) => UNITS[unit]).replace(/^, /, "").replaceAll("_", " ") || "size";
  const text = (v) => v === undefined || v === null || typeof v === "number" || typeof v === "string" ? v ?? null : Array.isArray(v) ? v.map(text).join(" ")
    : typeof v === "object" ? Object.entries(v).map(([name, one]) => name + " = " + text(one)).join(", ") : v ? "yes" : "no";
  const labelsOf = (rows, names) => {  // the values that differ between rows
    const differ = names.filter((name) => rows.some((row) => text(row[name]) !== text(rows[0][name])));
    return rows.map((row) => differ.map((name) => text(row[name])).filter(Boolean).join(", "));
  };
  const over = (x, y, rows, labels) => {  // a curve for each label; for points with equal x the first counts
    const lines = new Map();
    rows.forEach((row, r) => { if (!lines.has(labels[r])) lines.set(labels[r], new Map()); if (!lines.get(labels[r]).has(row[x])) lines.get(labels[r]).set(row[x], row[y]); });
    return [...lines].map(([label, points], i) => {
      const xs = [...points.keys()].sort((p, q) => p - q);
      return { label, style: "c" + i % 7 + (label.startsWith("MPI") ? " dashed" : ""), x: xs.map((v, p) => v - (p ? xs[p - 1] : 0)), y: xs.map((v) => points.get(v)) };
    });
  };
  const COLOURS = ["", "comm", "other", "late", "step"];
  const draw = {
    note: (text, parent) => make("p", { class: "note" }, parent, text),
    heading: (text, parent) => make("h3", {}, parent, text),
    charts(data, parent) {
      const marks = data.marks ?? [], kinds = Object.keys(words).filter((kind) => marks.some((mark) => mark.kind === kind));
      if (data.zooms) {
        const line = make("p", { class: "note screen" }, parent, "Point at a chart for values, drag to zoom all charts, double-click to reset. ");
        reset = make("button", { id: "reset" }, line, "All steps");
        reset.hidden = true;
        reset.addEventListener("click", () => setZoom(null));
        const clock = data.times && make("button", { id: "clock" }, line, "Over time");
        clock?.addEventListener("click", () => {
          const times = clock.textContent === "Over time" ? data.times : null;
          clock.textContent = times ? "Over steps" : "Over time";
          for (const chart of all) { chart.setX(times); chart.setPaths(); }
          setZoom(null);
        });
      }
      if (kinds.length) { const list = make("ul", { class: "legend key" }, parent); for (const kind of kinds) key(list, "mark " + kind, words[kind]); }
      const charts = make("div", { class: "charts" }, parent);
      for (const one of data.charts) all.push(new Chart(one, marks, charts));
    },
    bars(data, parent) {
      const figure = make("figure", { class: "timeline" }, parent), end = Math.max(1e-9, ...data.spans.map((s) => s.start + s.length)), percent = (v) => (100 * v / end).toFixed(3) + "%";
      if (data.title) caption(figure, data.title, data.unit);
      if (data.key) {
        const list = make("ul", { class: "legend key" }, figure), first = new Map(data.spans.map((s) => [s.kind, s.name]).reverse());
        for (const [kind, name] of [...first].reverse()) { const line = make("li", {}, list); make("i", { class: "bar " + kind }, line); line.append(name); }
      }
      const texts = Math.max(...data.spans.map((s) => (s.text ?? "").length));
      const bars = make("div", { class: "bars", role: "img", "aria-label": data.title || data.axis, style: `--rows:${data.rows.length};--right:${texts ? texts + 2 : 1}ch` }, figure);
      const tracks = data.rows.map((name) => [make("span", { class: "head" }, bars, name), make("div", {}, bars)]);
      for (const s of data.spans) {
        const [name, track] = tracks[s.row];
        name.removeAttribute("class");
        make("i", { class: "bar " + s.kind, style: `left:${percent(s.start)};width:${percent(s.length)}`, title: s.name }, track);
        if (s.text) make("b", { style: "left:" + percent(s.start + s.length) }, track, s.text);
      }
      make("span", {}, bars);
      const axis = make("div", { class: "axis" }, bars);
      let right = -Infinity;  // of the last label; labels that would overlap it are omitted
      for (const tick of ticks(0, end, 3)) {
        const label = make("u", { style: "left:" + percent(tick) }, axis, tickText(tick)), box = label.getBoundingClientRect();
        if (box.left < right + 4) label.remove(); else right = box.right;
      }
      make("span", {}, bars); make("div", { class: "unit" }, bars, data.axis);
      if (data.note) draw.note(data.note, figure);
    },
    table(data, parent) {  // a click on a heading sorts: numbers by value, missing cells last
      const table = make("table", { class: "sortable" }, make("div", { class: "scroll" + (data.rows.length > 16 ? " tall" : "") }, parent));
      const heads = make("tr", {}, make("thead", {}, table)), body = make("tbody", {}, table);
      const isNumber = (v) => v !== "" && v !== null && !isNaN(v), isMissing = (v) => v === "" || v === null;
      const rows = data.rows.map((cells, r) => {
        const run = data.runs?.[r], node = make("tr", { "data-run": run?.run }, body);
        cells.forEach((cell, column) => {
          const text = cell === null ? "–" : typeof cell !== "number" ? cell : data.formats?.[data.columns[column]] === "bytes" ? bytesText(cell) : number(cell);
          const sum = column >= data.shaded_from && cells.slice(data.shaded_from).reduce((p, q) => p + q, 0);
          const place = make("td", { style: sum ? `background:color-mix(in srgb, var(--c0) ${Math.round(35 * cell / sum)}%, transparent)` : undefined, class: isNumber(cell) || cell === null ? "n" : cell.length > 60 ? "v" : "nowrap" }, node);
          if (run && column === 0) make("span", { class: "key", style: `color:var(--${run.style})` }, place);
          place.append(text);
        });
        if (run) node.addEventListener("click", () => focus(run.run));
        return { cells, node };
      });
      data.columns.forEach((name, column) => {
        const th = make("th", { class: data.rows.length && data.rows.every(({ [column]: cell }) => isNumber(cell) || isMissing(cell)) ? "n" : "" }, heads);
        make("button", {}, th, name);
        th.addEventListener("click", () => {
          const up = th.getAttribute("aria-sort") !== "ascending";
          for (const other of heads.children) other.removeAttribute("aria-sort");
          th.setAttribute("aria-sort", up ? "ascending" : "descending");
          rows.sort(({ cells: { [column]: a } }, { cells: { [column]: b } }) => {
            if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
            const order = isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(b);
            return up ? order : -order;
          });
          body.append(...rows.map((row) => row.node));
        });
      });
      if (data.note) draw.note(data.note, parent);
    },
    rows(rows, parent) {
      const first = ["file", "path", "name", "mode", "model", "precision", "device", "ranks", "bytes"], place = (name) => (first.indexOf(name) + 1 || first.length + 1);
      const names = [...new Set(rows.flatMap(Object.keys))].filter((name) => !Array.isArray(rows[0][name]) || typeof rows[0][name][0] !== "object").sort((p, q) => place(p) - place(q));
      const formats = Object.fromEntries(names.filter((name) => name.endsWith("bytes")).map((name) => [heading(name), "bytes"]));
      draw.table({ columns: names.map(heading), rows: rows.map((row) => names.map((name) => text(row[name]))), formats }, parent);
    },
    results(results, parent) {
      const rows = results.flatMap((one) => (one.rows ?? one.operations ?? [one]).map((row) => (one.file ? { file: one.file, ...row } : row)));
      const charts = [], x = { name: "ranks", kind: "counts" }, size = { name: "size of the vector", kind: "bytes" };
      const sums = Object.entries({ lockstep_ms: "Lockstep", mpi_ms: "MPI_Allreduce" }).flatMap(([time, who]) => rows.filter((row) => row[time] > 0).map((row) => ({ ...row, who, ms: row[time], gb_s: 1e-6 * row.bytes / row[time] })));
      if (sums.length) {
        const labels = sums.map((row) => `${row.who}, ${row.ranks} rank${row.ranks > 1 ? "s" : ""}`), ours = sums.filter((row) => row.who === "Lockstep");
        charts.push({ title: "Bandwidth", unit: "GB/s: bytes of the vector over the time", x: size, dots: true, curves: over("bytes", "gb_s", sums, labels) });
        charts.push({ title: "Time", unit: "ms", x: size, dots: true, curves: over("bytes", "ms", sums, labels) });
        if (new Set(labels).size > 2) charts.push({ title: "Bandwidth over ranks", unit: "GB/s", x, dots: true, curves: over("ranks", "gb_s", ours, ours.map((row) => bytesText(row.bytes))) });
      }
      for (const speed of ["samples_per_second", "write_mb_s"]) {  // with the ideal: the throughput of the fewest ranks, scaled
        const fast = rows.filter((row) => row[speed]), labels = labelsOf(fast, ["model", "precision", "device", "shards", "micro_batches", "set", "graph"]);
        if (fast.length < 2) continue;
        fast.forEach((row, r) => {
          const first = fast.filter((_, other) => labels[other] === labels[r]).reduce((p, q) => (q.ranks < p.ranks ? q : p));
          row.ideal = first[speed] / first.ranks * row.ranks; row.efficiency = row[speed] / row.ideal;
        });
        const ideal = over("ranks", "ideal", fast, labels.map((label) => (label && label + ": ") + "ideal scaling from the first point"));
        for (const c of ideal) c.style += " dashed";
        charts.push({ title: "Throughput", unit: heading(speed), wide: true, x, dots: true, curves: [...ideal, ...over("ranks", speed, fast, labels.map((label) => label || "measured"))] });
        fast.forEach((row) => delete row.ideal);
      }
      if (charts.length) draw.charts({ charts }, parent);
      const labels = labelsOf(rows, ["file", "mode", "name"]), names = [...new Set(rows.flatMap(Object.keys))];
      for (const [unit, axis] of [["ms", "ms"], ["mb_s", "MB/s"]]) {
        const drawn = names.filter((name) => name.endsWith(unit)), spans = [];
        rows.slice(0, 60).forEach((row, r) => drawn.forEach((name, n) => { if (row[name] > 0) spans.push({ row: spans.length, kind: COLOURS[row.name && !row.gflops ? 1 : n % 5], name: [labels[r], name !== unit && heading(name)].filter(Boolean).join(": "), start: 0, length: row[name], text: number(row[name]) }); }));
        if (!charts.length && spans.length) draw.bars({ title: "", axis, spans, rows: spans.map((s) => s.name) }, parent);
      }
      draw.rows(rows, parent);
    },
    keys(pairs, parent, title) {
      const table = make("table", { class: "keys" }, parent);
      if (title) make("th", { colspan: 2 }, make("tr", {}, make("thead", {}, table)), title);
      const body = make("tbody", {}, table);
      for (const [name, value] of pairs) { const row = make("tr", {}, body); make("td", {}, row, name); make("td", { class: "v" }, row, value); }
    },
    columns(tables, parent) { const place = make("div", { class: "columns" }, parent); for (const one of tables) draw.keys(one.keys, place, one.title); },
    strip(samples, parent) {
      const strip = make("div", { class: "strip" }, parent);
      for (const sample of samples) {
        const figure = make("figure", {}, strip);
        if (sample.png) make("img", { alt: sample.name, src: "data:image/png;base64," + sample.png }, figure);
        else make("pre", {}, figure, sample.text);
        make("span", {}, make("figcaption", {}, figure), sample.name);
      }
    },
  };
  for (const { title, parts } of contents.sections) {
    const section = make("section", {}, main);
    main.insertBefore(section, footer);
    make("h2", {}, section, title);
    for (const part of parts) for (const kind in part) draw[kind](part[kind], section);
  }
  let width = 0;
  const redraw = () => { all.forEach((c) => c.measure()); all.forEach((c) => c.draw()); };  // all measure() first, so that the browser computes one layout
  const fit = () => { if (innerWidth !== width) { width = innerWidth; redraw(); } };
  addEventListener("resize", fit); addEventListener("beforeprint", redraw);
  fit();
})();
