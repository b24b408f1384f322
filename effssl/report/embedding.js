// The map of a report with its filters, the neighbors of the chosen image, and rows of neighbors.
function drawMap(data) {
  const section = document.getElementById("map"), panel = document.getElementById("neighbors"), key = section.querySelector(".key");
  const tile = useSheet(data.sheet, "sample"), count = data.names.length;
  const groups = { cluster: [...Array(Math.max(...data.clusters) + 1).keys()].map((k) => `cluster ${k + 1}`) };
  const of = { cluster: data.clusters };
  if (data.labels) Object.assign(groups, { label: data.classes }) && Object.assign(of, { label: data.labels });
  if (data.labels) Object.assign(groups, { part: ["training", "validation"] }) && Object.assign(of, { part: data.held });
  let by = data.labels ? "label" : "cluster", kind = Object.keys(data.maps)[0], off = new Set(), wanted = "";
  const sheetImage = new Image(), s = data.sheet.side, sharp = (size) => s < 32 ? size : Math.min(size, s);  // few pixels are enlarged as squares

  const title = (i) => `image ${i}${data.names[i] ? ` · ${data.names[i]}` : ""}`;
  const label = (i) => data.labels ? data.classes[data.labels[i]] : `cluster ${data.clusters[i] + 1}`;
  const matches = (i) => !wanted || `${i} ${data.names[i]} ${label(i)}`.toLowerCase().includes(wanted);
  const map = featureMap(section.querySelector("canvas"), section.querySelector(".tip"), {
    count, at: (i) => data.maps[kind][i], group: (i) => of[by][i], visible: (i) => !off.has(of[by][i]) && matches(i),
    picture: (i) => sheetImage.complete ? { image: sheetImage, x: i % data.sheet.columns * s, y: Math.floor(i / data.sheet.columns) * s, width: s, height: s } : null,
    describe: (i) => [tile(i, sharp(96)), element("div", {}, element("b", {}, label(i))), element("div", {}, title(i)), element("div", {}, `cluster ${data.clusters[i] + 1}${data.held[i] ? " · validation" : ""}`)],
    links: (i) => data.neighbors[i].slice(0, 6), choose: select, height: (width) => Math.round(Math.min(620, Math.max(320, width * 0.72))),
  });
  sheetImage.addEventListener("load", map.draw);
  sheetImage.src = data.sheet.src;

  function select(i) {
    map.choose(i);
    const near = data.neighbors[i].map((other, k) => {
      const agrees = !data.labels || data.labels[other] === data.labels[i];
      const name = data.labels ? `${agrees ? "✓" : "✗"} ${label(other)}` : data.names[other].split("/").pop() || `image ${other}`;
      return element("button", { type: "button", class: data.labels ? (agrees ? "same" : "other") : "", title: `${title(other)} · ${label(other)}`, onclick: () => select(other) },
        tile(other, 56), element("span", {}, name), element("span", {}, `${data.similarity[i][k]}\u00a0%`));
    });
    const right = data.labels ? data.neighbors[i].filter((other) => data.labels[other] === data.labels[i]).length : null;
    panel.replaceChildren(element("div", { class: "chosen" }, tile(i, sharp(112)), element("div", {}, element("b", {}, label(i)), element("div", {}, title(i)),
      element("div", {}, `cluster ${data.clusters[i] + 1}`), right === null ? null : element("div", {}, `${right} of ${near.length} neighbors have the same label`))),
      element("div", { class: "near", "aria-label": "nearest neighbors" }, ...near));
  }
  function showKey() {
    key.replaceChildren(...groups[by].map((name, g) => {
      const button = element("button", { type: "button", "aria-pressed": String(!off.has(g)) }, marked(g), `${name} (${of[by].filter((v) => v === g).length})`);
      button.addEventListener("click", () => { off.has(g) ? off.delete(g) : off.add(g); showKey(); map.draw(); });
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
    map.draw();
  });
  const search = element("input", { type: "search", placeholder: "name, label or number", "aria-label": "search images", size: 22 });
  search.addEventListener("input", () => { wanted = search.value.trim().toLowerCase(); map.draw(); });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !wanted) return;
    const exact = Number(wanted), first = Number.isInteger(exact) && exact >= 0 && exact < count ? exact : [...Array(count).keys()].find(matches);
    if (first !== undefined) select(first);
  });
  const thumbs = element("input", { type: "checkbox" });
  thumbs.addEventListener("change", () => { map.thumbnails = thumbs.checked; map.draw(); });
  document.getElementById("map-bar").append(pick("color by", Object.keys(of).reverse().sort((a, b) => (b === by) - (a === by)).map((v) => [v, v]), (v) => { by = v; off = new Set(); showFilter(); showKey(); map.draw(); }),
    element("label", {}, "show ", only), pick("map", Object.keys(data.maps).map((v) => [v, v]), (v) => { kind = v; map.moved(); }),
    element("label", {}, thumbs, " thumbnails"), search, element("button", { type: "button", onclick: map.reset }, "reset"));
  showFilter();
  showKey();
  section.place = map.place;  // position of a point, for tests
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
