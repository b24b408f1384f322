// The sections of the page and their data.
function drawCurves() {
  const bar = document.getElementById("curve-bar"), parent = document.querySelector("#curves .charts");
  const first = DATA.kind === "run" ? DATA.curves : DATA.runs[0].curves, shown = { axis: "epoch", window: 1, group: "" };
  const draw = () => {
    parent.replaceChildren();
    const { axis, window, group } = shown, common = { integers: axis === "epoch", xName: first.axes[axis] };
    if (DATA.kind === "run") {
      const c = DATA.curves;
      for (const { title, keys, unit, note, chance, free } of c.charts) {
        const levels = [...chanceLevels(Object.entries(chance).map(([k, value]) => [c.names[k], value])), ...Object.entries(free || {}).map(([name, value]) => ({ name, value }))];
        chart(parent, { ...common, title, note, unit, levels, series: keys.map((k, i) => ({ name: c.names[k], x: c.x[axis], y: smooth(c.columns[k], window), i })) });
      }
      return;
    }
    const done = new Set();
    for (const one of DATA.runs) for (const { title, keys, unit } of one.curves.charts) for (const k of keys) {
      if (done.has(k)) continue;
      done.add(k);
      const name = keys.length > 1 || k.includes("/") ? `${title}, ${one.curves.names[k]}` : title;
      const lines = DATA.runs.map((r, i) => r.curves.columns[k] && { run: i, name: r.name, x: r.curves.x[axis], y: smooth(r.curves.columns[k], window), i }).filter((s) => s);
      const charts = DATA.runs.flatMap((r) => r.curves.charts.filter((c) => c.keys.includes(k)).map((c) => [r.name, c]));
      const levels = [...chanceLevels(charts.filter(([, c]) => k in c.chance).map(([run, c]) => [run, c.chance[k]])), ...freeLevels(charts.map(([run, c]) => [run, c.free || {}]))];
      chart(parent, { ...common, title: name, unit, levels, series: group === "" ? lines : grouped(lines, group) });
    }
  };
  const choose = (key, read = (v) => v) => (v) => { shown[key] = read(v); draw(); };
  bar.append(pick("against", Object.entries(first.axes), choose("axis")), pick("smooth", [[1, "not"], [3, "over 3 points"], [7, "over 7 points"], [15, "over 15 points"]], choose("window", Number)));
  if (DATA.kind === "comparison") bar.append(pick("group by", [["", "run"], ...(DATA.differences.some(([k]) => k === "seed") ? [["*", "all settings but the seed"]] : []), ...DATA.differences.map(([k]) => [k, k])], choose("group")));
  draw();
}

// The mean over a window of so many points around each one; missing values stay missing.
function smooth(values, window) {
  const known = values.map((v, k) => [v, k]).filter(([v]) => v !== null), half = (window - 1) / 2, out = [...values];
  known.forEach(([, k], at) => {
    const near = Math.min(half, at, known.length - 1 - at), some = known.slice(at - near, at + near + 1);
    out[k] = some.reduce((sum, [v]) => sum + v, 0) / some.length;
  });
  return out;
}

// Runs with the same value of a setting as one line: mean and standard deviation at the positions that all of them have.
function grouped(lines, key) {
  const value = (run) => DATA.differences.filter(([k]) => key === "*" ? k !== "seed" : k === key).map(([k, values]) => key === "*" ? `${k} ${values[run]}` : values[run]).join(", ") || "all runs";
  const groups = new Map();
  for (const line of lines) groups.set(value(line.run), [...(groups.get(value(line.run)) || []), line]);
  return [...groups].map(([name, members], i) => {
    const at = members.map((line) => new Map(line.x.map((x, k) => [x, line.y[k]]).filter(([, y]) => y !== null)));
    const x = [...at[0].keys()].filter((v) => at.every((points) => points.has(v)));
    // Runs that were measured at different positions, as in seconds, have none in common: by order then.
    const shared = x.length ? x : [...Array(Math.min(...at.map((points) => points.size))).keys()].map((k) => mean(at.map((points) => [...points.keys()][k])));
    const ys = shared.map((v, k) => at.map((points) => x.length ? points.get(v) : [...points.values()][k]));
    const spread = ys.map((y) => y.length > 1 ? Math.sqrt(y.reduce((sum, v) => sum + (v - mean(y)) ** 2, 0) / (y.length - 1)) : 0);
    return { name: `${name} (${members.length})`, x: shared, y: ys.map(mean), spread, i };
  });
}
const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;

// Chance levels of a chart; a level that all share needs no name.
function chanceLevels(pairs) {
  const values = [...new Set(pairs.map(([, value]) => value))];
  return values.map((value) => ({ value, name: values.length === 1 ? "chance" : `chance, ${pairs.filter(([, v]) => v === value).map(([name]) => name).join(", ")}` }));
}

// What costs nothing, beside several runs: a line where all of them agree on it; chance is named by its runs where they do not.
function freeLevels(pairs) {
  const known = pairs.filter(([, free]) => Object.keys(free).length);
  const shared = [...new Set(known.flatMap(([, free]) => Object.keys(free)))].filter((name) => name !== "chance" && known.every(([, free]) => free[name] === known[0][1][name]));
  return [...shared.map((name) => ({ name, value: known[0][1][name] })), ...chanceLevels(known.filter(([, free]) => "chance" in free).map(([run, free]) => [run, free.chance]))];
}

// Images with their neighbors by the run's features and by raw pixels.
function drawPairs(data, tile) {
  const labelled = data.labels !== null, parent = document.querySelector("#examples .pairs");
  const one = (query, i) => {
    const thumbnail = tile(i, 48), same = labelled && data.labels[i] === data.labels[query];
    if (labelled) thumbnail.classList.add(same ? "same" : "other");
    const name = data.names[i] || `image ${i}`, label = labelled ? ` · ${data.classes[data.labels[i]]}` : "";
    fill(thumbnail, { role: "img", "aria-label": name + label, title: name + label }, []);
    return thumbnail;
  };
  parent.append(...data.examples.map(({ query, run, pixels }) => element("div", { class: "pair" }, tile(query, 96),
    element("div", {}, element("div", {}, "this run"), element("div", { class: "row" }, ...run.map((i) => one(query, i))),
      element("div", {}, "raw pixels"), element("div", { class: "row" }, ...pixels.map((i) => one(query, i)))))));
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
if (DATA.map) {
  const tile = drawMap(DATA.map);
  drawGallery(DATA.map, tile);
  if (DATA.map.examples && DATA.map.examples.length) drawPairs(DATA.map, tile);
}
if (DATA.map && DATA.map.probe) drawMatrix(document.querySelector("#probe .matrix"), DATA.map.probe);
for (const task of DATA.tasks || []) {
  const section = document.getElementById(`task-${task.name}`);
  drawExamples(section.querySelector(".examples"), task);
  if (task.confusion) drawMatrix(section.querySelector(".matrix"), task.confusion);
}
document.querySelectorAll(".swatch").forEach((swatch, i) => swatch.append(lineSample(i)));
