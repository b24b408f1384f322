// A map of features: marks or thumbnails on a canvas, with zoom, hover, choice and areas. Reports and effssl browse share it.
//
// source: count; at(i), its position from 0 to 1, y upwards; group(i), visible(i), describe(i), nodes of the tip;
// picture(i), { image, x, y, width, height } or null; links(i), whom lines connect; choose(i); height(width);
// and where images can be selected: marked(i), area(rows).
const MARGIN = 22, BUCKETS = 64;

function featureMap(canvas, tip, source) {
  const base = document.createElement("canvas"), rows = [...Array(source.count).keys()], sprites = new Map();
  let size = [1, 1], ratio = 1, view = { scale: 1, x: 0, y: 0 }, chosen = null, hovered = null, buckets = null;
  let stale = true, waiting = false, area = null;
  const map = { thumbnails: false, selecting: false, draw, place, choose, reset, moved };

  function place(i) {
    const [x, y] = source.at(i);
    return [(MARGIN + x * (size[0] - 2 * MARGIN)) * view.scale + view.x, (MARGIN + (1 - y) * (size[1] - 2 * MARGIN)) * view.scale + view.y];
  }
  function resize() {
    const width = canvas.parentElement.clientWidth, height = source.height(width);
    if (!width) return;  // hidden
    ratio = window.devicePixelRatio || 1;
    size = [width, height];
    for (const one of [canvas, base]) [one.width, one.height] = [width * ratio, height * ratio];
    canvas.style.height = `${height}px`;
    sprites.clear();
    draw();
  }
  function reset() {
    view = { scale: 1, x: 0, y: 0 };
    draw();
  }
  function moved() {  // positions have changed
    buckets = null;
    draw();
  }
  function draw() {
    stale = true;
    refresh();
  }
  function refresh() {  // all marks are drawn again only if something about them has changed
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      if (stale) drawMarks();
      stale = false;
      drawAbove();
    });
  }
  const radius = () => Math.min(9, (source.count > 2000 ? 3 : 4.2) * view.scale ** 0.35);
  function sprite(kind, ink, r, open) {  // a mark, drawn once
    const key = `${kind} ${ink} ${r}`;
    if (sprites.has(key)) return sprites.get(key);
    if (sprites.size > 500) sprites.clear();  // of earlier zooms
    const half = Math.ceil(1.5 * r + 2), mine = document.createElement("canvas"), g = mine.getContext("2d");
    mine.width = mine.height = 2 * half * ratio;
    g.scale(ratio, ratio);
    g.fillStyle = g.strokeStyle = ink;
    g.lineWidth = 1.6;
    const path = new Path2D(mark(kind, half, half, r));
    open ? g.stroke(path) : g.fill(path);
    sprites.set(key, { mine, half });
    return sprites.get(key);
  }
  function drawMarks() {
    const g = base.getContext("2d"), r = radius(), side = map.thumbnails ? Math.min(72, 30 * Math.sqrt(view.scale)) : 0;
    canvas.style.touchAction = view.scale > 1 || map.selecting ? "none" : "pan-y";  // a touch scrolls the page until the map is zoomed
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, ...size);
    const edge = Math.max(side, 2 * r), shown = [];
    for (const faint of [true, false]) {
      g.globalAlpha = faint ? 0.08 : 0.9;
      for (const i of rows) {
        if (source.visible(i) === faint) continue;
        const [x, y] = place(i);
        if (x < -edge || y < -edge || x > size[0] + edge || y > size[1] + edge) continue;
        if (!faint) shown.push([i, x, y]);
        const group = source.group(i), { mine, half } = sprite(shape(group), color(group), r, hollow(shape(group)));
        g.drawImage(mine, x - half, y - half, 2 * half, 2 * half);
      }
    }
    g.globalAlpha = 1;
    if (side) drawThumbnails(g, shown, side);
    const { mine, half } = sprite("circle", getComputedStyle(document.body).color, r + 2, true);
    if (source.marked) for (const [i, x, y] of shown) if (source.marked(i)) g.drawImage(mine, x - half, y - half, 2 * half, 2 * half);
  }
  function drawThumbnails(g, shown, side) {  // as many as fit beside each other; the other images stay marks
    const taken = new Map(), cell = (v) => Math.floor(v / side) + 8, key = (a, b) => 4096 * a + b;
    const free = (x, y) => {
      for (let a = cell(x) - 1; a <= cell(x) + 1; a++) for (let b = cell(y) - 1; b <= cell(y) + 1; b++) {
        const other = taken.get(key(a, b));
        if (other && Math.abs(other[0] - x) < side && Math.abs(other[1] - y) < side) return false;
      }
      return true;
    };
    for (const [i, x, y] of shown) {
      if (!free(x, y)) continue;
      taken.set(key(cell(x), cell(y)), [x, y]);
      const picture = source.picture(i);
      if (!picture) continue;
      const f = (side - 2) / Math.max(picture.width, picture.height), w = picture.width * f, h = picture.height * f;
      g.drawImage(picture.image, picture.x, picture.y, picture.width, picture.height, x - w / 2, y - h / 2, w, h);
      g.strokeStyle = color(source.group(i));
      g.lineWidth = 1.5;
      g.strokeRect(x - w / 2, y - h / 2, w, h);
    }
  }
  function drawAbove() {
    const g = canvas.getContext("2d"), ink = getComputedStyle(document.body).color, r = radius();
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.clearRect(0, 0, canvas.width, canvas.height);
    g.drawImage(base, 0, 0);
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.strokeStyle = ink;
    const ring = (i, more, width) => { g.lineWidth = width; g.stroke(new Path2D(mark("circle", ...place(i), r + more))); };
    if (chosen !== null) {
      g.lineWidth = 1;
      for (const other of source.links(chosen)) { g.beginPath(); g.moveTo(...place(chosen)); g.lineTo(...place(other)); g.stroke(); }
      ring(chosen, 5, 2.5);
    }
    if (hovered !== null) ring(hovered, 3, 1.5);
    if (area) {
      g.lineWidth = 1.5;
      g.setLineDash([5, 4]);
      g.strokeRect(area[0], area[1], area[2] - area[0], area[3] - area[1]);
      g.setLineDash([]);
    }
  }

  function nearestTo(event) {
    const frame = canvas.getBoundingClientRect(), x = event.clientX - frame.left, y = event.clientY - frame.top;
    const reach = event.pointerType === "touch" ? 26 : 14, clamp = (v) => Math.max(0, Math.min(BUCKETS - 1, Math.floor(v * BUCKETS)));
    if (!buckets) {
      buckets = new Map();
      for (const i of rows) {
        const key = clamp(source.at(i)[0]) * BUCKETS + clamp(source.at(i)[1]);
        buckets.has(key) ? buckets.get(key).push(i) : buckets.set(key, [i]);
      }
    }
    const across = (v) => ((v - view.x) / view.scale - MARGIN) / (size[0] - 2 * MARGIN), up = (v) => 1 - ((v - view.y) / view.scale - MARGIN) / (size[1] - 2 * MARGIN);
    let best = null, least = reach ** 2;
    for (let a = clamp(across(x - reach)); a <= clamp(across(x + reach)); a++) for (let b = clamp(up(y + reach)); b <= clamp(up(y - reach)); b++) {
      for (const i of buckets.get(a * BUCKETS + b) || []) {
        if (!source.visible(i)) continue;
        const [px, py] = place(i), d = (px - x) ** 2 + (py - y) ** 2;
        if (d < least) [best, least] = [i, d];
      }
    }
    return best;
  }
  function hover(i) {
    if (i === hovered) return;
    hovered = i;
    tip.hidden = i === null;
    refresh();
    if (i === null) return;
    tip.replaceChildren(...source.describe(i));
    const [x, y] = place(i);
    tip.style.left = `${Math.max(4, x > size[0] / 2 ? x - tip.offsetWidth - 14 : x + 14)}px`;
    tip.style.top = `${Math.max(4, Math.min(size[1] - tip.offsetHeight - 4, y - tip.offsetHeight / 2))}px`;
  }
  function choose(i) {
    chosen = i;
    refresh();
  }
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
  let path = 0;
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event);
    path = 0;
    hover(null);
    canvas.setPointerCapture(event.pointerId);
    area = source.area && (event.shiftKey || map.selecting) ? [event.offsetX, event.offsetY, event.offsetX, event.offsetY] : null;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return hover(nearestTo(event));
    const dx = event.clientX - before.clientX, dy = event.clientY - before.clientY;
    if (area) {
      [area[2], area[3]] = [event.offsetX, event.offsetY];
      refresh();
    } else if (fingers.size === 2) {
      const other = [...fingers.entries()].find(([id]) => id !== event.pointerId)[1];
      const was = Math.hypot(before.clientX - other.clientX, before.clientY - other.clientY), is = Math.hypot(event.clientX - other.clientX, event.clientY - other.clientY);
      zoom(is / Math.max(1, was), event.offsetX, event.offsetY);
    } else if (view.scale > 1) {
      view = { scale: view.scale, x: view.x + dx, y: view.y + dy };
      draw();
    }
    path += Math.abs(dx) + Math.abs(dy);
    fingers.set(event.pointerId, event);
  });
  canvas.addEventListener("pointerup", (event) => {
    fingers.delete(event.pointerId);
    const framed = area && path >= 6 ? area : null;
    area = null;
    if (framed) {
      const [left, right] = [framed[0], framed[2]].sort((a, b) => a - b), [top, bottom] = [framed[1], framed[3]].sort((a, b) => a - b);
      source.area(rows.filter((i) => {
        const [x, y] = place(i);
        return source.visible(i) && x >= left && x <= right && y >= top && y <= bottom;
      }));
      return refresh();
    }
    const found = nearestTo(event);
    if (path < 6 && found !== null) { hover(found); source.choose(found); }
  });
  canvas.addEventListener("pointercancel", (event) => { fingers.delete(event.pointerId); area = null; });
  canvas.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hover(null); });  // a touch leaves after every tap

  const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  function step([dx, dy]) {  // to the nearest image in a direction
    const [x, y] = chosen === null ? [size[0] / 2, size[1] / 2] : place(chosen);
    let best = null, least = Infinity;
    for (const i of rows) {
      if (i === chosen || !source.visible(i)) continue;
      const [px, py] = place(i), along = (px - x) * dx + (py - y) * dy, beside = Math.abs((px - x) * dy) + Math.abs((py - y) * dx);
      if ((along > 0.5 || chosen === null) && beside <= Math.abs(along) && along + 2 * beside < least) [best, least] = [i, along + 2 * beside];
    }
    if (best !== null) source.choose(best);
  }
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Escape") choose(null);
    if ("+-=".includes(event.key)) zoom(event.key === "-" ? 1 / 1.4 : 1.4, size[0] / 2, size[1] / 2);
    if (event.key === "0") reset();
    if (!(event.key in DIRECTIONS)) return;
    event.preventDefault();
    step(DIRECTIONS[event.key]);
  });
  new ResizeObserver(resize).observe(canvas.parentElement);
  return map;
}
