// The sections of the page and their data.
function drawCurves() {
  const bar = document.getElementById("curve-bar"), parent = document.querySelector("#curves .charts");
  const first = DATA.kind === "run" ? DATA.curves : DATA.runs[0].curves;
  const show = (axis) => {
    parent.replaceChildren();
    if (DATA.kind === "run") {
      const c = DATA.curves;
      for (const { title, keys, unit, note, chance } of c.charts) {
        const levels = chanceLevels(Object.entries(chance).map(([k, value]) => [c.names[k], value]));
        chart(parent, { title, note, unit, levels, integers: axis === "epoch", xName: c.axes[axis], series: keys.map((k, i) => ({ name: c.names[k], x: c.x[axis], y: c.columns[k], i })) });
      }
      return;
    }
    const done = new Set();
    for (const one of DATA.runs) for (const { title, keys, unit } of one.curves.charts) for (const k of keys) {
      if (done.has(k)) continue;
      done.add(k);
      const name = keys.length > 1 || k.includes("/") ? `${title}, ${one.curves.names[k]}` : title;
      const series = DATA.runs.map((r, i) => r.curves.columns[k] && { name: r.name, x: r.curves.x[axis], y: r.curves.columns[k], i }).filter((s) => s);
      const levels = chanceLevels(DATA.runs.flatMap((r) => r.curves.charts.filter((c) => k in c.chance).map((c) => [r.name, c.chance[k]])));
      chart(parent, { title: name, unit, levels, integers: axis === "epoch", xName: first.axes[axis], series });
    }
  };
  bar.append(pick("against", Object.entries(first.axes), show));
  show("epoch");
}

// Chance levels of a chart; a level that all share needs no name.
function chanceLevels(pairs) {
  const values = [...new Set(pairs.map(([, value]) => value))];
  return values.map((value) => ({ value, name: values.length === 1 ? "chance" : `chance, ${pairs.filter(([, v]) => v === value).map(([name]) => name).join(", ")}` }));
}

function drawViews(data) {
  const parent = document.querySelector(".views"), tile = useSheet(data.sheet, "views"), side = Math.min(104, Math.max(72, data.sheet.side));
  const half = Math.ceil(data.rows / 2);
  for (let first = 0; first < data.rows; first += half) {  // two blocks, side by side if the window is wide enough
    const block = element("div", { class: "block", style: `grid-template-columns:repeat(${data.columns.length}, ${side}px)` });
    block.append(...data.columns.map((title) => element("div", {}, element("b", {}, title))));
    for (let row = first; row < Math.min(data.rows, first + half); row++) data.columns.forEach((_, column) => {
      const caption = data.captions[column][row], name = column === 0 ? data.names[row] : "";
      block.append(element("div", {}, tile(column * data.rows + row, side), element("div", { class: "name", title: name }, column === 0 ? caption || name.split("/").pop() : caption)));
    });
    parent.append(element("div", { class: "scroll" }, block));
  }
}

function drawExamples(parent, task) {
  const tile = useSheet(task.sheet, `task-${task.name}`), side = Math.min(96, Math.max(64, task.sheet.side));
  parent.append(...task.captions.map((caption, i) => element("figure", {}, tile(i, side), element("figcaption", {}, caption))));
}

function drawMatrix(parent, data) {
  const n = data.labels.length, cells = new Map(data.cells.map(([a, b, c]) => [a * n + b, c])), totals = Array(n).fill(0);
  for (const [a, , c] of data.cells) totals[a] += c;
  const share = (a, b) => totals[a] ? (cells.get(a * n + b) || 0) / totals[a] : 0;
  if (n <= 20) {
    const long = Math.max(...data.labels.map((l) => l.length)) > 4;
    const head = element("tr", {}, element("th", {}, "true ↓  predicted →"), ...data.labels.map((l) => element("th", { scope: "col" }, element("div", { class: long ? "tall" : "" }, l))));
    const rows = data.labels.map((l, a) => element("tr", {}, element("th", { scope: "row" }, l), ...data.labels.map((other, b) => {
      const v = share(a, b), text = totals[a] && v >= 0.005 ? String(Math.round(100 * v)) : "";
      return element("td", { class: a === b ? "diagonal" : "", style: `background:rgba(var(--tint), ${(0.45 * v).toFixed(3)})`, title: `${l} predicted as ${other}: ${cells.get(a * n + b) || 0} of ${totals[a]}` }, text);
    })));
    parent.append(element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))), element("p", { class: "hint" }, "percent of each row"));
  } else {
    const canvas = element("canvas", { width: n, height: n, role: "img", "aria-label": "confusion matrix" }), g = canvas.getContext("2d"), reading = element("p", { class: "hint" }, "Rows are true labels, columns predictions; hover over the matrix to read it.");
    canvas.style.width = `${Math.min(560, Math.max(300, 6 * n))}px`;
    const tint = getComputedStyle(document.documentElement).getPropertyValue("--tint");
    for (const [a, b] of data.cells) { g.fillStyle = `rgba(${tint}, ${0.25 + 0.75 * share(a, b)})`; g.fillRect(b, a, 1, 1); }
    // A frame shows the diagonal, the correct predictions, even where it is empty.
    g.strokeStyle = getComputedStyle(document.body).color;
    g.globalAlpha = 0.35;
    g.lineWidth = 0.15;
    for (let k = 0; k < n; k++) g.strokeRect(k, k, 1, 1);
    canvas.addEventListener("pointermove", (event) => {
      const b = Math.min(n - 1, Math.floor(event.offsetX / canvas.clientWidth * n)), a = Math.min(n - 1, Math.floor(event.offsetY / canvas.clientHeight * n));
      reading.textContent = `${data.labels[a]} predicted as ${data.labels[b]}: ${cells.get(a * n + b) || 0} of ${totals[a]}`;
    });
    parent.append(canvas, reading);
  }
  const worst = data.cells.filter(([a, b]) => a !== b).sort((x, y) => y[2] - x[2]).slice(0, 5);
  if (worst.length) parent.append(element("p", {}, "Most frequent errors: " + worst.map(([a, b, c]) => `${data.labels[a]} predicted as ${data.labels[b]} (${c} of ${totals[a]})`).join(", ") + "."));
}

// Arms along an axis are curves; others are rows with one mark for our value and one for the published value.
function drawArms() {
  const parent = document.querySelector("#arms .charts"), known = (v) => v !== null && v !== undefined;
  for (const { name, arms } of DATA.measures) {
    if (arms.filter((a) => known(a.at)).length <= 2) { rowsOfArms(parent, name, arms); continue; }
    const kinds = [...new Set(arms.map((a) => a.objective))];
    for (const [axis, xName] of [["at", "axis of the study"], ["tflop", "TFLOP of training"]]) {
      const series = kinds.flatMap((kind, i) => {
        const mine = arms.filter((a) => a.objective === kind && known(a[axis])).sort((a, b) => a[axis] - b[axis]), x = mine.map((a) => a[axis]);
        const ours = { name: `${kind}, ours`, x, y: mine.map((a) => a.ours), spread: mine.map((a) => a.spread), texts: mine.map((a) => `${a.arm}, ours (${a.seeds} seeds)`), i };
        const published = { name: `${kind}, published`, x, y: mine.map((a) => a.published), texts: mine.map((a) => `${a.arm}, published`), i, line: false, open: true };
        return (axis === "at" ? [ours, published] : [ours]).filter((s) => s.y.some(known));
      });
      if (series.length) chart(parent, { title: name, xName, series });
    }
  }
}

function rowsOfArms(parent, name, arms) {
  const W = 380, left = 130, right = 14, row = 19, H = arms.length * row + 30;
  const values = arms.flatMap((a) => [a.ours === null ? null : a.ours - a.spread, a.ours === null ? null : a.ours + a.spread, a.published]).filter((v) => v !== null && v !== undefined);
  if (!values.length) return;
  const low = Math.min(...values), high = Math.max(...values), pad = (high - low) * 0.05 || 1;
  const sx = (v) => left + (v - low + pad) / (high - low + 2 * pad) * (W - left - right);
  const plot = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${name} of every arm, ours and published` });
  for (const v of ticks(low - pad, high + pad, 5)) plot.append(svg("line", { class: "grid", x1: sx(v), x2: sx(v), y1: 4, y2: H - 24 }), svg("text", { class: "axis", x: sx(v), y: H - 8, "text-anchor": "middle" }, number(v)));
  arms.forEach((a, k) => {
    const y = 14 + k * row, short = a.arm.length > 20 ? `${a.arm.slice(0, 19)}…` : a.arm;
    plot.append(svg("text", { class: "axis", x: left - 8, y: y + 4, "text-anchor": "end" }, short));
    if (a.ours !== null) plot.append(svg("line", { x1: sx(a.ours - a.spread), x2: sx(a.ours + a.spread), y1: y, y2: y, stroke: color(0), "stroke-width": 2 }),
      svg("path", { d: mark("circle", sx(a.ours), y, 4.5), fill: color(0) }, svg("title", {}, `${a.arm}, ours: ${number(a.ours)} ± ${number(a.spread)}, ${a.seeds} seeds`)));
    if (a.published !== null && a.published !== undefined) plot.append(svg("path", { d: mark("diamond", sx(a.published), y, 4.5), fill: "var(--card)", stroke: color(1), "stroke-width": 2 }, svg("title", {}, `${a.arm}, published: ${number(a.published)}`)));
  });
  parent.append(element("div", { class: "chart" }, element("div", { class: "top" }, element("h3", {}, name)), plot));
}

const parts = [...document.querySelectorAll("section[data-title]")];
document.querySelector("nav").append(...parts.map((part) => element("a", { href: `#${part.id}` }, part.dataset.title)));
if (DATA.kind !== "study") drawCurves();
if (DATA.kind === "study") drawArms();
if (DATA.views) drawViews(DATA.views);
if (DATA.map) drawGallery(DATA.map, drawMap(DATA.map));
if (DATA.map && DATA.map.probe) drawMatrix(document.querySelector("#probe .matrix"), DATA.map.probe);
for (const task of DATA.tasks || []) {
  const section = document.getElementById(`task-${task.name}`);
  drawExamples(section.querySelector(".examples"), task);
  if (task.confusion) drawMatrix(section.querySelector(".matrix"), task.confusion);
}
document.querySelectorAll(".swatch").forEach((swatch, i) => swatch.append(lineSample(i)));
