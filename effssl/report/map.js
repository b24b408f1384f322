// The map of features: points or thumbnails on a canvas, filters, neighbors of what is clicked.
function drawMap(data) {
  const section = document.getElementById("map"), canvas = section.querySelector("canvas"), tip = section.querySelector(".tip");
  const bar = document.getElementById("map-bar"), panel = document.getElementById("neighbors"), key = section.querySelector(".key");
  const tile = useSheet(data.sheet, "sample"), count = data.names.length;
  const groups = { cluster: [...Array(Math.max(...data.clusters) + 1).keys()].map((k) => `cluster ${k + 1}`) };
  const of = { cluster: data.clusters };
  if (data.labels) Object.assign(groups, { label: data.classes }) && Object.assign(of, { label: data.labels });
  if (data.labels) Object.assign(groups, { part: ["training", "validation"] }) && Object.assign(of, { part: data.held });
  let by = data.labels ? "label" : "cluster", kind = Object.keys(data.maps)[0], thumbnails = false, selected = null, hovered = null;
  let off = new Set(), wanted = "", view = { scale: 1, x: 0, y: 0 }, size = [1, 1], ratio = 1;
  const sheetImage = new Image();
  sheetImage.addEventListener("load", () => draw());
  sheetImage.src = data.sheet.src;

  const title = (i) => `image ${i}${data.names[i] ? ` · ${data.names[i]}` : ""}`;
  const label = (i) => data.labels ? data.classes[data.labels[i]] : `cluster ${data.clusters[i] + 1}`;
  const matches = (i) => !wanted || `${i} ${data.names[i]} ${label(i)}`.toLowerCase().includes(wanted);
  const visible = (i) => !off.has(of[by][i]) && matches(i);
  const place = (i) => {
    const [x, y] = data.maps[kind][i], margin = 22;
    return [(margin + x * (size[0] - 2 * margin)) * view.scale + view.x, (margin + (1 - y) * (size[1] - 2 * margin)) * view.scale + view.y];
  };
  function resize() {
    const width = canvas.parentElement.clientWidth, height = Math.round(Math.min(620, Math.max(320, width * 0.72)));
    ratio = window.devicePixelRatio || 1;
    size = [width, height];
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    draw();
  }
  function draw() {
    const g = canvas.getContext("2d"), ink = getComputedStyle(document.body).color;
    canvas.style.touchAction = view.scale > 1 ? "none" : "pan-y";  // a touch scrolls the page until the map is zoomed
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, ...size);
    const side = Math.min(64, 20 * Math.sqrt(view.scale)), r = Math.min(9, (count > 2000 ? 3 : 4.2) * view.scale ** 0.35);
    const order = [...Array(count).keys()].filter((i) => !visible(i)).concat([...Array(count).keys()].filter(visible));
    for (const i of order) {
      const [x, y] = place(i), group = of[by][i];
      if (x < -side || y < -side || x > size[0] + side || y > size[1] + side) continue;
      g.globalAlpha = visible(i) ? 0.9 : 0.08;
      if (thumbnails && sheetImage.complete && visible(i)) {
        const s = data.sheet.side;
        g.drawImage(sheetImage, i % data.sheet.columns * s, Math.floor(i / data.sheet.columns) * s, s, s, x - side / 2, y - side / 2, side, side);
        continue;
      }
      const path = new Path2D(mark(shape(group), x, y, r));
      g.fillStyle = g.strokeStyle = color(group);
      g.lineWidth = 1.6;
      hollow(shape(group)) ? g.stroke(path) : g.fill(path);
    }
    g.globalAlpha = 1;
    g.strokeStyle = ink;
    if (selected !== null) {
      const [x, y] = place(selected);
      g.lineWidth = 1;
      for (const other of data.neighbors[selected].slice(0, 6)) {
        g.beginPath(); g.moveTo(x, y); g.lineTo(...place(other)); g.stroke();
      }
      g.lineWidth = 2.5;
      g.stroke(new Path2D(mark("circle", x, y, r + 5)));
    }
    if (hovered !== null) { g.lineWidth = 1.5; g.stroke(new Path2D(mark("circle", ...place(hovered), r + 3))); }
  }
  function nearestTo(event) {
    const frame = canvas.getBoundingClientRect(), x = event.clientX - frame.left, y = event.clientY - frame.top;
    let best = null, least = (event.pointerType === "touch" ? 26 : 14) ** 2;
    for (let i = 0; i < count; i++) {
      if (!visible(i)) continue;
      const [a, b] = place(i), d = (a - x) ** 2 + (b - y) ** 2;
      if (d < least) [best, least] = [i, d];
    }
    return best;
  }
  function hover(i) {
    hovered = i;
    tip.hidden = i === null;
    draw();
    if (i === null) return;
    tip.replaceChildren(tile(i, 96), element("div", {}, element("b", {}, label(i))), element("div", {}, title(i)), element("div", {}, `cluster ${data.clusters[i] + 1}${data.held[i] ? " · validation" : ""}`));
    const [x, y] = place(i);
    tip.style.left = `${Math.max(4, x > size[0] / 2 ? x - tip.offsetWidth - 14 : x + 14)}px`;
    tip.style.top = `${Math.max(4, Math.min(size[1] - tip.offsetHeight - 4, y - tip.offsetHeight / 2))}px`;
  }
  function select(i) {
    selected = i;
    draw();
    const near = data.neighbors[i].map((other, k) => {
      const agrees = !data.labels || data.labels[other] === data.labels[i];
      const name = data.labels ? `${agrees ? "✓" : "✗"} ${label(other)}` : data.names[other].split("/").pop() || `image ${other}`;
      return element("button", { type: "button", class: data.labels ? (agrees ? "same" : "other") : "", title: `${title(other)} · ${label(other)}`, onclick: () => select(other) },
        tile(other, 56), element("span", {}, name), element("span", {}, `${data.similarity[i][k]}\u00a0%`));
    });
    const right = data.labels ? data.neighbors[i].filter((other) => data.labels[other] === data.labels[i]).length : null;
    panel.replaceChildren(element("div", { class: "chosen" }, tile(i, 112), element("div", {}, element("b", {}, label(i)), element("div", {}, title(i)),
      element("div", {}, `cluster ${data.clusters[i] + 1}`), right === null ? null : element("div", {}, `${right} of ${near.length} neighbors have the same label`))),
      element("div", { class: "near", "aria-label": "nearest neighbors" }, ...near));
  }
  function showKey() {
    key.replaceChildren(...groups[by].map((name, g) => {
      const button = element("button", { type: "button", "aria-pressed": String(!off.has(g)) }, marked(g), `${name} (${of[by].filter((v) => v === g).length})`);
      button.addEventListener("click", () => { off.has(g) ? off.delete(g) : off.add(g); showKey(); draw(); });
      return button;
    }));
  }
  const only = element("select", { id: "only" });
  function showFilter() {
    only.replaceChildren(element("option", { value: "" }, `every ${by}`), ...groups[by].map((name, g) => element("option", { value: g }, name)));
  }
  only.addEventListener("change", () => {
    off = new Set(only.value === "" ? [] : groups[by].map((_, g) => g).filter((g) => g !== Number(only.value)));
    showKey();
    draw();
  });
  const search = element("input", { type: "search", placeholder: "name, label or number", "aria-label": "search images", size: 22 });
  search.addEventListener("input", () => { wanted = search.value.trim().toLowerCase(); draw(); });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !wanted) return;
    const exact = Number(wanted), first = Number.isInteger(exact) && exact >= 0 && exact < count ? exact : [...Array(count).keys()].find(matches);
    if (first !== undefined) select(first);
  });
  const thumbs = element("input", { type: "checkbox" });
  thumbs.addEventListener("change", () => { thumbnails = thumbs.checked; draw(); });
  bar.append(pick("color by", Object.keys(of).reverse().sort((a, b) => (b === by) - (a === by)).map((v) => [v, v]), (v) => { by = v; off = new Set(); showFilter(); showKey(); draw(); }),
    element("label", {}, "show ", only), pick("map", Object.keys(data.maps).map((v) => [v, v]), (v) => { kind = v; draw(); }),
    element("label", {}, thumbs, " thumbnails"), search, element("button", { type: "button", onclick: () => { view = { scale: 1, x: 0, y: 0 }; draw(); } }, "reset"));

  function zoom(factor, x, y) {
    const scale = Math.min(30, Math.max(1, view.scale * factor)), f = scale / view.scale;
    view = scale === 1 ? { scale, x: 0, y: 0 } : { scale, x: x - (x - view.x) * f, y: y - (y - view.y) * f };
    draw();
  }
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.0015), event.offsetX, event.offsetY);
  }, { passive: false });
  const fingers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, event); moved = 0; hover(null); canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return hover(nearestTo(event));
    const dx = event.clientX - before.clientX, dy = event.clientY - before.clientY;
    if (fingers.size === 2) {
      const other = [...fingers.entries()].find(([id]) => id !== event.pointerId)[1];
      const was = Math.hypot(before.clientX - other.clientX, before.clientY - other.clientY), is = Math.hypot(event.clientX - other.clientX, event.clientY - other.clientY);
      zoom(is / Math.max(1, was), event.offsetX, event.offsetY);
    } else if (view.scale > 1) {
      view = { scale: view.scale, x: view.x + dx, y: view.y + dy };
      draw();
    }
    moved += Math.abs(dx) + Math.abs(dy);
    fingers.set(event.pointerId, event);
  });
  canvas.addEventListener("pointerup", (event) => {
    fingers.delete(event.pointerId);
    const found = nearestTo(event);
    if (moved < 6 && found !== null) { hover(found); select(found); }
  });
  canvas.addEventListener("pointercancel", (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hover(null); });  // a touch leaves after every tap
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { selected = null; draw(); }
    if (event.key === "+" || event.key === "-") zoom(event.key === "+" ? 1.4 : 1 / 1.4, size[0] / 2, size[1] / 2);
  });
  new ResizeObserver(resize).observe(canvas.parentElement);
  showFilter();
  showKey();
  section.place = place;  // position of a point, for tests
  return tile;
}

function drawGallery(data, tile) {
  const parent = document.querySelector("#gallery .gallery"), caption = (i) => data.labels ? data.classes[data.labels[i]] : data.names[i].split("/").pop() || `image ${i}`;
  const strip = (query) => element("div", { class: "strip" }, ...[query, ...data.neighbors[query].slice(0, 7)].map((i, k) => {
    const agrees = data.labels && data.labels[i] === data.labels[query], thumbnail = tile(i, 56);
    if (k && data.labels) thumbnail.classList.add(agrees ? "same" : "other");
    return element("figure", { title: data.names[i] || `image ${i}` }, thumbnail, element("figcaption", {}, (k && data.labels ? (agrees ? "✓ " : "✗ ") : "") + caption(i)));
  }));
  const { hits, misses, some, counts } = data.gallery;
  const column = (title, rows) => rows && rows.length ? element("div", {}, element("h3", {}, title), ...rows.map(strip)) : null;
  fill(parent, {}, some ? [
    column("Some images and their nearest neighbors", some.slice(0, Math.ceil(some.length / 2))), column("Some more", some.slice(Math.ceil(some.length / 2)))] : [
    column(`Hits: the nearest neighbor has the same label (${counts[0]} of ${counts[0] + counts[1]} validation images)`, hits),
    column(`Misses: it has another label (${counts[1]} of ${counts[0] + counts[1]})`, misses)]);
}
