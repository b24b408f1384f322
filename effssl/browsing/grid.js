// A list of sections of images of which only the visible rows exist, so that 20,000 images scroll as quickly as 20.
//
// section: { title, rows, captions, first, note, lines }: lines is how many lines of images are shown until it is opened.
const SIDES = { S: 92, M: 136, L: 200 }, GAP = 8, TEXT = 40, HEAD = 46;

function imageGrid(box, act) {
  const all = box.querySelector(".all"), shown = new Map();
  let sections = [], nothing = "", lines = [], cells = [], columns = 1, side = 0, height = 0, at = 0, opened = new Set(), anchor = null, waiting = false;

  function show(found, keep = false, empty = "") {  // `empty` is said where there are no images
    sections = found;
    nothing = empty || "Nothing to show.";
    if (!keep) { opened = new Set(); at = 0; anchor = null; box.scrollTop = 0; }
    layout();
  }
  function layout() {
    const width = box.clientWidth - 24;
    if (width <= 0) return;
    const wanted = DATA.server ? SIDES[state.size] : Math.min(SIDES[state.size], DATA.side);
    columns = Math.max(2, Math.floor((width + GAP) / (Math.min(wanted, 160) + GAP + (wanted > 160 ? wanted - 160 : 0))));
    side = Math.min(wanted + 40, Math.floor((width + GAP) / columns) - GAP);
    height = side + TEXT + GAP;
    lines = [];
    cells = [];
    let y = 4;
    sections.forEach((section, s) => {
      const open = opened.has(s) || !section.lines, rows = open ? section.rows : section.rows.slice(0, section.lines * columns);
      if (section.title) lines.push({ y, s, open, hidden: section.rows.length - rows.length });
      if (section.title) y += HEAD;
      for (let k = 0; k < rows.length; k += columns) {
        lines.push({ y, s, from: k, cell: cells.length, count: Math.min(columns, rows.length - k) });
        for (let j = k; j < Math.min(k + columns, rows.length); j++) cells.push({ s, j, i: rows[j], line: lines.length - 1 });
        y += height;
      }
      if (section.title) y += 8;
    });
    all.style.height = `${y + 8}px`;
    all.replaceChildren();
    shown.clear();
    if (!cells.length) all.append(element("p", { class: "empty" }, state.wanted ? `No image here matches “${state.wanted}”.` : nothing));
    at = Math.min(at, Math.max(0, cells.length - 1));
    draw();
  }
  function draw() {
    const top = box.scrollTop - 300, bottom = box.scrollTop + box.clientHeight + 300;
    let low = 0, high = lines.length;
    while (low < high) { const middle = (low + high) >> 1; lines[middle].y + height < top ? low = middle + 1 : high = middle; }
    const wanted = new Set();
    for (let k = low; k < lines.length && lines[k].y < bottom; k++) wanted.add(k);
    for (const [k, node] of shown) if (!wanted.has(k)) { node.remove(); shown.delete(k); }
    for (const k of wanted) if (!shown.has(k)) {
      const node = lines[k].from === undefined ? head(lines[k]) : line(lines[k]);
      node.style.transform = `translateY(${lines[k].y}px)`;
      shown.set(k, node);
      all.append(node);
    }
    mark();
  }
  function head({ s, open, hidden }) {
    const section = sections[s], more = hidden || (section.lines && open);
    const whole = section.rows.every((i) => state.selected.has(i)), rest = section.first === "keep" ? section.rows.slice(1) : null;
    return element("div", { class: "head", role: "presentation" },
      section.color === undefined ? null : marked(section.color), element("h2", { title: section.title }, section.title), section.note ? element("span", {}, section.note) : null, element("i"),
      rest ? element("button", { type: "button", onclick: () => select(rest) }, `select ${rest.length === 1 ? "the other" : `the other ${rest.length}`}`) : null,
      element("button", { type: "button", onclick: () => select(section.rows, !whole) }, rest ? "all" : whole ? "deselect" : "select all"),
      more ? element("button", { type: "button", "aria-expanded": String(Boolean(open)), onclick: () => { open ? opened.delete(s) : opened.add(s); layout(); } }, open ? "fewer" : `show all ${section.rows.length.toLocaleString("en-US")}`) : null);
  }
  function line({ s, from, cell, count }) {
    const node = element("div", { class: "line", role: "presentation", style: `grid-template-columns:repeat(${columns}, minmax(0, 1fr));height:${height - GAP}px` });
    for (let j = 0; j < count; j++) node.append(one(sections[s], from + j, cell + j));
    return node;
  }
  function one(section, j, cell) {
    const i = section.rows[j], caption = (section.captions || [])[j] || "", isFirst = section.first && j === 0;
    const box = element("span", { class: "frame", style: `height:${side}px` }, picture(i, side),
      element("span", { class: "check", "aria-hidden": "true" }, "✓"), isFirst ? element("span", { class: "badge" }, section.first) : null);
    const node = element("div", { class: `cell${isFirst ? " first" : ""}`, role: "option", id: `cell${cell}`, "data-cell": cell, "data-row": i, title: [fullName(i), labelOf(i), caption].filter((t) => t).join("\n") },
      box, element("span", { class: "label" }, cut(shortName(i), side / 7.8)), element("span", { class: "caption" }, caption || classOf(i)));
    return node;
  }
  function mark() {  // what changes without a new layout
    for (const node of all.querySelectorAll(".cell")) {
      const i = Number(node.dataset.row), name = state.tags.get(i), old = node.querySelector(".tag");
      node.setAttribute("aria-selected", String(state.selected.has(i)));
      node.classList.toggle("current", state.chosen === i);
      node.classList.toggle("at", Number(node.dataset.cell) === at);
      if ((old ? old.textContent : "") !== (name || "")) {
        if (old) old.remove();
        if (name) node.querySelector(".frame").append(element("span", { class: "tag", title: name }, name));
      }
    }
    if (cells.length) box.setAttribute("aria-activedescendant", `cell${at}`); else box.removeAttribute("aria-activedescendant");
  }
  function heads() {  // their buttons say what is selected
    for (const [k, node] of shown) if (lines[k].from === undefined) {
      const fresh = head(lines[k]), focused = [...node.children].indexOf(document.activeElement);
      fresh.style.transform = node.style.transform;
      node.replaceWith(fresh);
      shown.set(k, fresh);
      if (focused >= 0 && fresh.children[focused]) fresh.children[focused].focus();
    }
  }
  function moveTo(cell, extend) {
    if (!cells.length) return;
    if (extend && anchor === null) anchor = at;
    at = Math.max(0, Math.min(cells.length - 1, cell));
    if (extend) range(anchor, at); else anchor = null;
    const { y } = lines[cells[at].line];
    if (y < box.scrollTop + 4) box.scrollTop = y - (cells[at].line && lines[cells[at].line - 1].from === undefined ? HEAD : 8);
    if (y + height > box.scrollTop + box.clientHeight) box.scrollTop = y + height - box.clientHeight;
    draw();
  }
  const range = (a, b) => select(cells.slice(Math.min(a, b), Math.max(a, b) + 1).map((cell) => cell.i));
  function down(by) {  // to the same column of another line of images
    const { line: k } = cells[at], column = at - lines[k].cell;
    let to = k + by;
    while (lines[to] && lines[to].from === undefined) to += by;
    return lines[to] ? lines[to].cell + Math.min(column, lines[to].count - 1) : at;
  }
  box.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }, { passive: true });
  box.addEventListener("click", (event) => {
    const node = event.target.closest(".cell");
    if (!node) return;
    const cell = Number(node.dataset.cell), i = cells[cell].i;
    if (event.shiftKey) { range(anchor === null ? at : anchor, cell); at = cell; return; }
    at = anchor = cell;
    if (event.target.closest(".check") || event.ctrlKey || event.metaKey) select([i], !state.selected.has(i));
    else act.choose(i);
    mark();
  });
  box.addEventListener("dblclick", (event) => { if (event.target.closest(".cell") && !event.target.closest(".check")) act.open(cells[at].i); });
  box.addEventListener("keydown", (event) => {
    if (!cells.length || event.target !== box) return;
    const page = Math.max(1, Math.floor(box.clientHeight / height));
    const moves = { ArrowLeft: () => at - 1, ArrowRight: () => at + 1, ArrowUp: () => down(-1), ArrowDown: () => down(1), Home: () => 0, End: () => cells.length - 1,
      PageDown: () => at + page * columns, PageUp: () => at - page * columns };
    if (event.key in moves) moveTo(moves[event.key](), event.shiftKey);
    else if (event.key === "Enter") act.choose(cells[at].i);
    else if (event.key === " ") select([cells[at].i], !state.selected.has(cells[at].i));
    else if (event.key.toLowerCase() === "a" && (event.ctrlKey || event.metaKey)) select(cells.map((cell) => cell.i));
    else return;
    event.preventDefault();
  });
  new ResizeObserver(layout).observe(box);
  listeners.push((what) => { mark(); if (what === "selection") heads(); });
  return { show, layout, mark, rows: () => sections.flatMap((section) => section.rows) };
}
