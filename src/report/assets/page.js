"use strict";
// Draws the charts at the width they have, and shows values and parts of them. A path holds its values: x in steps from data-x0, or where
// data-xkind is there in millionths of a power of ten; y in millionths of [data-y0, data-y1], logarithms where data-log is 1
// (src/report/chart.cpp draws the same without a script).
(() => {
  const LEVELS = 1e6, RIGHT = 12, TOP = 10, BOTTOM = 38, PAD = 0.06;
  const make = (tag, attributes, parent, text) => {
    const node = document.createElementNS(parent.namespaceURI, tag);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
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
  const ticks = (low, high, wanted) => {
    if (!(high > low)) return [low];
    const rough = (high - low) / Math.max(1, wanted), power = 10 ** Math.floor(Math.log10(rough)), ratio = rough / power;
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

  const values = document.createElement("div");
  values.id = "values"; values.hidden = true;
  document.body.appendChild(values);
  let zoom = null;  // what is shown of all charts with an x axis of one name; null: all

  class Chart {
    constructor(figure) {
      this.figure = figure; this.svg = figure.querySelector("svg");
      for (const key of ["x0", "x1", "y0", "y1"]) this[key] = Number(figure.dataset[key]);
      this.log = figure.dataset.log === "1"; this.x = figure.dataset.x; this.xkind = figure.dataset.xkind;
      this.grid = this.svg.querySelector(".grid"); this.plot = this.svg.querySelector(".plot"); this.group = this.svg.querySelector(".curves");
      this.marks = [...this.svg.querySelectorAll(".mark")];
      this.paths = [...this.group.querySelectorAll("path:not(.at)")];
      this.cursor = make("g", { class: "cursor" }, this.plot);
      this.svg.addEventListener("pointermove", (e) => this.move(e));
      this.svg.addEventListener("pointerleave", () => { if (!this.from) all.forEach((c) => c.point(null)); values.hidden = true; });
      this.svg.addEventListener("pointerdown", (e) => { if (e.button === 0) { this.from = this.stepAt(e); this.svg.setPointerCapture(e.pointerId); this.move(e); } });
      this.svg.addEventListener("pointerup", (e) => this.release(e));
      this.svg.addEventListener("pointercancel", () => { this.from = null; this.point(null); values.hidden = true; });
      this.svg.addEventListener("dblclick", () => setZoom(null));
    }
    curves() {  // read when they are needed
      if (!this.read) this.read = this.paths.map((path) => {
        const numbers = path.getAttribute("d").match(/-?\d+/g), x = [], y = [];
        let px = 0, py = 0;
        for (let i = 0; i + 1 < numbers.length; i += 2) { px += +numbers[i]; py += +numbers[i + 1]; x.push(px + this.x0); y.push(py / LEVELS); }
        return { path, x, y, label: path.dataset.label, colour: (path.getAttribute("class").match(/c\d|rest/) || ["c0"])[0], raw: path.classList.contains("raw") };
      });
      return this.read;
    }
    xValue(position) { return this.xkind ? 10 ** (position / LEVELS) : position; }
    xPosition(value) { return this.xkind ? Math.log10(value) * LEVELS : value; }
    xText(position) { const v = this.xValue(position); return this.xkind === "bytes" ? bytesText(v) : Math.round(v).toLocaleString("en"); }
    xTicks(wanted) {
      if (!this.xkind) return ticks(this.a, this.b, wanted);
      if (this.xkind === "bytes") return bytesTicks(this.xValue(this.a), this.xValue(this.b), wanted);
      const apart = [];
      for (const x of this.curves().flatMap((c) => c.x).sort((p, q) => p - q))
        if (x >= this.a && x <= this.b && (!apart.length || x - this.xPosition(apart[apart.length - 1]) > (this.b - this.a) / (3 * wanted))) apart.push(Math.round(this.xValue(x)));
      return apart;
    }
    value(place) { const v = this.y0 + place * (this.y1 - this.y0); return this.log ? 10 ** v : v; }
    draw() {
      this.width = Math.max(260, this.figure.clientWidth); this.height = this.figure.classList.contains("wide") ? Math.max(230, Math.min(330, this.width * 0.4)) : 230;
      this.ph = this.height - TOP - BOTTOM;
      this.a = this.x0; this.b = this.x1; let low = 0, high = 1;
      if (zoom && zoom.x === this.x && zoom.a < this.x1 && zoom.b > this.x0) {
        this.a = zoom.a; this.b = zoom.b; low = Infinity; high = -Infinity;
        for (const c of this.curves()) for (let i = 0; i < c.x.length; ++i) if (c.x[i] >= this.a && c.x[i] <= this.b) { low = Math.min(low, c.y[i]); high = Math.max(high, c.y[i]); }
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
      for (let wanted = Math.max(2, Math.floor(this.pw / 95)); wanted > 0; --wanted) {  // as many as fit
        labels = this.xTicks(wanted).map((tick) => {
          const text = this.xkind === "bytes" ? bytesText(tick) : tickText(tick), x = this.left + this.at(this.xPosition(tick));
          return { x, text, half: text.length * 3.8, at: Math.min(x, this.width - text.length * 3.8) };
        });
        if (labels.every((label, i) => i === 0 || label.at - label.half > labels[i - 1].at + labels[i - 1].half)) break;
      }
      for (const label of labels) {
        make("path", { d: `M${label.x} ${bottom}v5`, class: "tick" }, this.grid);
        make("text", { x: label.at, y: bottom + 18, class: "x" }, this.grid, label.text);
      }
      make("path", { d: `M${this.left} ${bottom}h${this.pw}`, class: "axis" }, this.grid);
      make("text", { x: this.left + this.pw / 2, y: this.height - 4, class: "x name" }, this.grid, this.x + (this.xkind ? " (log scale)" : ""));
      for (const mark of this.marks) mark.setAttribute("d", `M${this.at(+mark.dataset.x)} 0V${this.ph}`);
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
    point(step) {  // a line at this step; returns what is there
      this.cursor.textContent = "";
      if (step === null || step < this.a || step > this.b) return [];
      const found = [];
      make("path", { d: `M${this.at(step)} 0V${this.ph}` }, this.cursor);
      for (const c of this.curves()) {
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
      const head = document.createElement("div"), bold = document.createElement("b");
      bold.textContent = this.x + " " + this.xText(found.length ? found[0].step : step);
      head.appendChild(bold); values.appendChild(head);
      for (const f of found.slice(0, 8)) {
        const row = document.createElement("div"), key = document.createElement("i");
        key.className = f.c.colour; row.appendChild(key);
        row.append(trim(this.value(f.place), 5) + "  " + f.c.label + (f.step !== found[0].step ? " (" + this.x + " " + this.xText(f.step) + ")" : ""));
        values.appendChild(row);
      }
      for (const mark of this.marks) if (Math.abs(this.at(+mark.dataset.x) - this.at(step)) < 6) {
        const row = document.createElement("div"); row.textContent = mark.querySelector("title").textContent; values.appendChild(row);
      }
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

  const all = [...document.querySelectorAll("figure.chart")].map((figure) => new Chart(figure));
  const reset = document.querySelector("#reset");
  const setZoom = (range) => { zoom = range; if (reset) reset.hidden = !zoom; all.forEach((c) => c.draw()); };
  if (reset) reset.addEventListener("click", () => setZoom(null));
  let width = 0;
  const fit = () => { if (innerWidth !== width) { width = innerWidth; all.forEach((c) => c.draw()); } };
  addEventListener("resize", fit); addEventListener("beforeprint", () => all.forEach((c) => c.draw()));
  fit();

  for (const table of document.querySelectorAll("table.sortable")) {  // by a column, numbers by value, what is missing last
    table.querySelectorAll("th").forEach((th, column) => th.addEventListener("click", () => {
      const up = th.getAttribute("aria-sort") !== "ascending", body = table.tBodies[0];
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      th.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const rows = [...body.rows].sort((p, q) => {
        const a = key(p), b = key(q);
        if (a === "" || b === "") return (a === "") - (b === "");
        const order = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
        return up ? order : -order;
      });
      body.append(...rows);
    }));
  }
  let focused = null;
  for (const row of document.querySelectorAll("tr[data-run]")) row.addEventListener("click", () => {  // this run above all others
    focused = focused === row.dataset.run ? null : row.dataset.run;
    document.querySelectorAll("tr[data-run]").forEach((r) => r.classList.toggle("on", r.dataset.run === focused));
    for (const chart of all) {
      chart.group.classList.toggle("focus", focused !== null);
      for (const path of chart.paths) { const on = path.dataset.run === focused; path.classList.toggle("on", on); if (on) chart.group.appendChild(path); }
    }
  });
})();
