// A line chart: hovering shows values, dragging zooms, clicking a name hides its line.
function ticks(low, high, count, integers = false) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const fine = [1, 2, 5, 10].find((k) => k * power >= rough) * power, step = integers ? Math.max(1, fine) : fine;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

function lineSample(i) {
  return svg("svg", { viewBox: "0 0 30 12", "aria-hidden": "true" },
    svg("line", { x1: 1, y1: 6, x2: 29, y2: 6, stroke: color(i), "stroke-width": 2, "stroke-dasharray": DASHES[i % DASHES.length] }),
    svg("path", { d: mark(shape(i), 15, 6, 3.5), fill: hollow(shape(i)) ? "var(--card)" : color(i), stroke: color(i) }));
}

// series: [{name, x: [...], y: [...], i, line, spread}]; null values are left out. levels: [{name, value}], horizontal lines.
function chart(parent, { title, note = "", unit = "", xName, series, integers = false, levels = [] }) {
  const W = 380, H = 220, left = 48, right = 10, top = 10, bottom = 34;
  const hidden = new Set();
  const back = element("button", { type: "button", hidden: "", onclick: () => zoom(null) }, "reset");
  const plot = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}: ${series.map((s) => s.name).join(", ")}` });
  const reading = element("div", { class: "reading", hidden: "" });
  const legend = element("div", { class: "legend" }, ...series.map((s) => {
    const button = element("button", { type: "button", "aria-pressed": "true" }, lineSample(s.i), s.name);
    button.addEventListener("click", () => {
      hidden.has(s) ? hidden.delete(s) : hidden.add(s);
      button.setAttribute("aria-pressed", String(!hidden.has(s)));
      draw();
    });
    return button;
  }));
  const box = element("div", { class: "chart" }, element("div", { class: "top" }, element("h3", {}, title + (unit ? `, ${unit}` : "")), back),
    note ? element("div", { class: "note-line" }, note) : null, plot, legend, reading);
  parent.append(box);
  let range = null, sx, sy, cursor, sample;

  function zoom(to) {
    range = to;
    back.hidden = !to;
    draw();
  }
  function draw() {
    const shown = series.filter((s) => !hidden.has(s));
    const points = shown.flatMap((s) => s.x.map((x, k) => [x, s.y[k], (s.spread || [])[k] || 0])).filter(([x, y]) => x !== null && y !== null);
    const inside = range ? points.filter(([x]) => x >= range[0] && x <= range[1]) : points;
    const used = inside.length ? inside : points;
    let [x0, x1] = range || [Math.min(...points.map((p) => p[0])), Math.max(...points.map((p) => p[0]))];
    let y0 = Math.min(...used.map((p) => p[1] - p[2])), y1 = Math.max(...used.map((p) => p[1] + p[2]));
    for (const { value } of levels) [y0, y1] = [Math.min(y0, value), Math.max(y1, value)];
    if (!points.length) [x0, x1, y0, y1] = [0, 1, 0, 1];
    if (x1 <= x0) [x0, x1] = [x0 - 0.5, x0 + 0.5];
    const pad = (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 0.5;
    [y0, y1] = [y0 - pad, y1 + pad];
    sx = (x) => left + (x - x0) / (x1 - x0) * (W - left - right);
    sy = (y) => H - bottom - (y - y0) / (y1 - y0) * (H - top - bottom);
    sx.back = (p) => x0 + (p - left) / (W - left - right) * (x1 - x0);
    const clip = `clip${Math.random().toString(36).slice(2)}`;
    const grid = svg("g");
    for (const y of ticks(y0, y1, 4)) {
      grid.append(svg("line", { class: "grid", x1: left, x2: W - right, y1: sy(y), y2: sy(y) }),
        svg("text", { class: "axis", x: left - 5, y: sy(y) + 4, "text-anchor": "end" }, number(y)));
    }
    for (const x of ticks(x0, x1, 5, integers)) {
      grid.append(svg("text", { class: "axis", x: sx(x), y: H - bottom + 14, "text-anchor": "middle" }, number(x)));
    }
    grid.append(svg("text", { class: "axis", x: (left + W - right) / 2, y: H - 5, "text-anchor": "middle" }, xName));
    const named = [];
    for (const { name, value } of levels) {
      // Names of levels that are close to each other stand side by side.
      const near = named.filter((y) => Math.abs(y - sy(value)) < 12).length % 3;
      const [x, anchor] = [[W - right, "end"], [left + 4, "start"], [(left + W - right) / 2, "middle"]][near];
      named.push(sy(value));
      grid.append(svg("line", { class: "chance", x1: left, x2: W - right, y1: sy(value), y2: sy(value), stroke: "var(--soft)", "stroke-dasharray": "4 4" }),
        svg("text", { class: "axis", x, y: sy(value) - 4, "text-anchor": anchor }, name));
    }
    const lines = svg("g", { "clip-path": `url(#${clip})` });
    for (const s of shown) {
      const path = s.x.map((x, k) => [x, s.y[k], (s.spread || [])[k] || 0]).filter(([x, y]) => x !== null && y !== null);
      if (s.line !== false && path.length) {
        lines.append(svg("path", { d: "M" + path.map(([x, y]) => `${sx(x).toFixed(1)} ${sy(y).toFixed(1)}`).join("L"), fill: "none", stroke: color(s.i), "stroke-width": 1.8, "stroke-dasharray": DASHES[s.i % DASHES.length], "stroke-linejoin": "round" }));
      }
      for (const [x, y, d] of path) if (d) lines.append(svg("line", { x1: sx(x), x2: sx(x), y1: sy(y - d), y2: sy(y + d), stroke: color(s.i) }));
      const every = Math.max(1, Math.ceil(path.length / 12));
      path.forEach(([x, y], k) => {
        if (k % every && k !== path.length - 1) return;
        const open = s.open || hollow(shape(s.i));
        lines.append(svg("path", { d: mark(shape(s.i), sx(x), sy(y), 3.2), fill: open ? "var(--card)" : color(s.i), stroke: color(s.i), "stroke-width": 1.4 }));
      });
    }
    cursor = svg("line", { y1: top, y2: H - bottom, stroke: "var(--soft)", "stroke-dasharray": "3 3", visibility: "hidden" });
    sample = svg("rect", { y: top, height: H - top - bottom, fill: "rgba(var(--tint), .18)", visibility: "hidden" });
    plot.replaceChildren(svg("clipPath", { id: clip }, svg("rect", { x: left - 4, y: top - 4, width: W - left - right + 8, height: H - top - bottom + 8 })), grid, lines, cursor, sample);
  }
  const place = (event) => {
    const frame = plot.getBoundingClientRect();
    return Math.min(W - right, Math.max(left, (event.clientX - frame.left) / frame.width * W));
  };
  function read(event) {
    const x = sx.back(place(event));
    const shown = series.filter((s) => !hidden.has(s));
    const all = shown.flatMap((s) => s.x.filter((v, k) => v !== null && s.y[k] !== null));
    if (!all.length) return;
    const near = all.reduce((best, v) => Math.abs(v - x) < Math.abs(best - x) ? v : best);
    cursor.setAttribute("x1", sx(near));
    cursor.setAttribute("x2", sx(near));
    cursor.setAttribute("visibility", "visible");
    const rows = shown.map((s) => {
      const k = s.x.map((v, k) => [Math.abs(v - near), k]).filter(([, k]) => s.y[k] !== null && s.x[k] !== null).sort((a, b) => a[0] - b[0])[0];
      const text = (s.texts || [])[k && k[1]];
      return k === undefined ? null : element("div", {}, element("b", {}, number(s.y[k[1]])), ` ${text || s.name}`);
    });
    reading.replaceChildren(element("div", {}, `${xName}: ${number(near)}`), ...rows.filter((row) => row));
    reading.hidden = false;
    const frame = box.getBoundingClientRect(), at = event.clientX - frame.left;
    reading.style.top = `${event.clientY - frame.top + 14}px`;
    reading.style.left = at > frame.width / 2 ? `${Math.max(0, at - reading.offsetWidth - 10)}px` : `${at + 12}px`;
  }
  let start = null;
  plot.addEventListener("pointerdown", (event) => { start = place(event); plot.setPointerCapture(event.pointerId); read(event); });
  plot.addEventListener("pointermove", (event) => {
    read(event);
    if (start === null) return;
    const now = place(event);
    fill(sample, { x: Math.min(start, now), width: Math.abs(now - start), visibility: "visible" }, []);
  });
  plot.addEventListener("pointerup", (event) => {
    const now = place(event), from = start;
    start = null;
    sample.setAttribute("visibility", "hidden");
    if (from !== null && Math.abs(now - from) > 12) zoom([sx.back(Math.min(from, now)), sx.back(Math.max(from, now))]);
  });
  const leave = () => { start = null; reading.hidden = true; if (cursor) { cursor.setAttribute("visibility", "hidden"); sample.setAttribute("visibility", "hidden"); } };
  plot.addEventListener("pointerleave", leave);
  plot.addEventListener("pointercancel", leave);
  plot.addEventListener("dblclick", () => zoom(null));
  draw();
}
