// The views of the page, its search and its keys.
const grid = imageGrid(document.getElementById("grid"), { choose, open: openWhole }), bar = document.getElementById("bar"), stage = document.getElementById("stage");
const actions = { choose, open: openWhole, view: go };
const views = [
  ...(ANALYZED ? [
    { name: "map", title: "Map" },
    { name: "clusters", title: "Clusters", hint: () => "Groups of similar images (k-means), the largest first, with their most typical images.", sections: clusterSections },
    { name: "all", title: "All images", hint: () => "", sections: () => [{ title: "", rows: ALL }] },
    { name: "neighbors", title: "Neighbors", hint: neighborHint, sections: neighborSections },
  ] : []),
  ...DATA.views.map((view) => ({ name: view.name, title: view.title, hint: () => viewHint(view), sections: () => view.sections, empty: view.name === "duplicates" ? view.hint : "", extra: view.name === "subset" ? subsetActions : null,
    count: view.name === "duplicates" ? view.sections.length : view.sections.reduce((sum, section) => sum + section.rows.length, 0) })),
  { name: "selected", title: "Selected", hint: () => "", sections: () => [{ title: "", rows: [...state.selected].sort((a, b) => a - b) }], changes: true },
];
const viewOf = (name) => views.find((view) => view.name === name);
let answer = null;  // of the last search by a picture: { name, url, rows, similarity }

function viewHint(view) {
  if (view.name !== "duplicates") return view.hint;
  if (!view.sections.length) return "";  // the empty grid says it
  const largest = Math.max(...view.sections.map((section) => section.rows.length)), typical = ANALYZED ? ` The median similarity of an image to its nearest neighbor is ${DATA.typical.toFixed(3)}.` : "";
  const warning = ANALYZED && largest > Math.max(20, 0.1 * COUNT) ? ` ${largest} images are one group: at this threshold the encoder tells few images apart; raise --threshold.` : "";
  return view.hint + typical + warning;
}
function clusterSections() {
  const found = [];
  for (const i of ORDER) (found[CLUSTER[i]] = found[CLUSTER[i]] || []).push(i);
  return found.map((rows, c) => ({ title: `Cluster ${c + 1}`, color: c, rows, note: plural(rows.length, "image"), lines: 1 })).filter((section) => section);
}
function neighborSections() {
  if (answer) return [{ title: `Nearest to ${answer.name}`, rows: answer.rows, captions: answer.similarity.map((v) => v.toFixed(3)) }];
  if (state.chosen !== null) return [around(state.chosen)];
  const step = Math.max(1, Math.floor(COUNT / 12));
  return ALL.filter((i) => i % step === 0).slice(0, 12).map((i) => ({ ...around(i), lines: 1 }));
}
const around = (i) => ({ title: shortName(i), rows: [i, ...neighborsOf(i)], captions: ["", ...similarityOf(i).map((v) => v.toFixed(3))], first: "query" });
function neighborHint() {
  if (answer) return "Images of this page that are most similar to your picture, by the cosine of their features.";
  return state.chosen !== null ? "The images that are most similar to the chosen one, by the cosine of their features." : "Some images and those most similar to them, by the cosine of their features; choose any image for its own.";
}
function subsetActions() {
  const rows = viewOf("subset").sections()[0].rows, input = element("input", { type: "number", min: 1, max: rows.length, value: Math.min(50, rows.length), "aria-label": "number of images" });
  return [element("label", {}, "the first ", input), element("button", { type: "button", onclick: () => select(rows.slice(0, Math.max(0, Number(input.value)))) }, "select")];
}

// -------------------------------------------------------------------------------------------------------------------
function filtered(sections) {
  const wanted = matching(state.wanted);
  if (!wanted) return sections;
  return sections.map((section) => {
    const kept = section.rows.map((_, k) => k).filter((k) => wanted.has(section.rows[k]));
    const first = section.first && kept[0] === 0 ? section.first : "";
    return { ...section, rows: kept.map((k) => section.rows[k]), captions: section.captions && kept.map((k) => section.captions[k]), first };
  }).filter((section) => section.rows.length);
}
function show(keep = false) {
  const view = viewOf(state.view), isMap = view.name === "map";
  document.getElementById("grid").hidden = isMap;
  document.getElementById("plane").hidden = !isMap;
  showTabs();
  if (isMap) { showMapBar(); map.draw(); return; }
  const sections = filtered(view.sections()), count = sections.reduce((sum, section) => sum + section.rows.length, 0);
  const sizes = element("span", { class: "together", role: "group", "aria-label": "size" }, ...Object.keys(SIDES).filter((size) => DATA.server || size === "S" || SIDES[size] <= DATA.side + 24).map((size) => element("button", { type: "button", "aria-pressed": String(size === state.size), title: `size ${size}`, onclick: () => { state.size = size; show(true); grid.layout(); } }, size)));
  const hint = view.hint();
  bar.replaceChildren(...[element("p", { class: "hint", title: hint }, state.wanted ? `${plural(count, "image")} match “${state.wanted}”. ${hint}` : hint || plural(count, "image")), ...(view.extra ? view.extra() : []), sizes].filter((node) => node));
  if (view.name === "neighbors" && answer) bar.prepend(element("img", { class: "query", alt: "your picture", src: answer.url }), element("button", { type: "button", onclick: () => { answer = null; show(); } }, "close search"));
  grid.show(sections, keep, view.empty);
}
function showTabs() {
  const nav = document.querySelector("nav");
  nav.replaceChildren(...views.filter((view) => view.name !== "selected" || state.selected.size).map((view) => {
    const count = view.name === "selected" ? state.selected.size : view.count;
    return element("button", { type: "button", role: "tab", id: `tab-${view.name}`, "aria-selected": String(view.name === state.view), onclick: () => go(view.name) }, view.title, count === undefined ? null : element("small", {}, count.toLocaleString("en-US")));
  }));
}
function go(name) {
  if (name === "neighbors" && state.view !== "neighbors" && state.chosen !== null) answer = null;
  state.view = name;
  history.replaceState(null, "", `#${name}`);
  show();
  document.getElementById(`tab-${name}`).scrollIntoView({ block: "nearest", inline: "nearest" });
}
function choose(i) {
  state.chosen = i;
  if (map) map.choose(i);
  showInspector(document.getElementById("inspector"), actions);
  document.getElementById("inspector").scrollTop = 0;
  if (ANALYZED && state.view === "neighbors" && i !== null && !answer) show();
  grid.mark();
}
function openWhole(i) {  // at full size
  if (!DATA.server) { if (DATA.files[i]) window.open(fileLink(i), "_blank", "noopener"); return; }
  const dialog = document.getElementById("whole"), name = shortName(i);
  dialog.replaceChildren(element("button", { type: "button", class: "close", "aria-label": "close", onclick: () => dialog.close() }, "×"), element("img", { src: `image/${i}`, alt: name }), element("p", {}, name));
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); }, { once: true });
  if (!dialog.open) dialog.showModal();
}

// -------------------------------------------------------------------------------------------------------------------
// The map
const colorings = {};
if (ANALYZED) colorings.cluster = { of: (i) => CLUSTER[i], names: [...Array(Math.max(...CLUSTER) + 1).keys()].map((c) => `cluster ${c + 1}`) };
if (DATA.labels) colorings.label = { of: (i) => DATA.labels[i] < 0 ? DATA.classes.length : DATA.labels[i], names: [...DATA.classes, "no label"] };
colorings.tag = { of: (i) => { const k = tagged.indexOf(state.tags.get(i)); return k < 0 ? 8 : k < 8 ? k : k + 1; }, names: [] };  // 8 is gray
let tagged = tagNames(), by = DATA.labels && DATA.classes.length <= 40 ? "label" : "cluster", off = new Set(), wanted = null, kind = ANALYZED ? Object.keys(DATA.maps)[0] : "";
const points = ANALYZED ? Object.fromEntries(Object.entries(DATA.maps).map(([name, text]) => [name, typed(text, Uint16Array)])) : {};
const map = ANALYZED ? featureMap(document.querySelector("#plane canvas"), document.querySelector("#plane .tip"), {
  count: COUNT, at: (i) => [points[kind][2 * i] / 65535, points[kind][2 * i + 1] / 65535], group: (i) => colorings[by].of(i),
  visible: (i) => !off.has(colorings[by].of(i)) && (!wanted || wanted.has(i)), picture: (i) => decodedPicture(i, map.draw),
  describe: (i) => [picture(i, 160), element("b", {}, shortName(i)), element("div", {}, [classOf(i), state.tags.get(i), `cluster ${CLUSTER[i] + 1}`].filter((t) => t).join(" · "))],
  links: (i) => neighborsOf(i).slice(0, 6), marked: (i) => state.selected.has(i), choose, area: (rows) => select(rows),
  height: () => Math.max(240, document.querySelector("#plane .plane").clientHeight),
}) : null;
function showMapBar() {
  wanted = matching(state.wanted);
  const names = Object.keys(points), toggle = (text, name, title) => {
    const button = element("button", { type: "button", "aria-pressed": String(map[name]), title }, text);
    button.addEventListener("click", () => { map[name] = !map[name]; button.setAttribute("aria-pressed", String(map[name])); map.draw(); });
    return button;
  };
  const choice = (label, options, value, change) => { const made = pick(label, options.map((v) => [v, v]), change); made.querySelector("select").value = value; return made; };
  bar.replaceChildren(...[toggle("thumbnails", "thumbnails", "show pictures where they fit"), toggle("select area", "selecting", "drag a frame around images; or hold shift"),
    choice("color by", Object.keys(colorings), by, (v) => { by = v; off = new Set(); showMapBar(); map.draw(); }),
    names.length > 1 ? choice("map", names, kind, (v) => { kind = v; map.moved(); }) : null, element("button", { type: "button", onclick: map.reset }, "whole map"),
    element("p", { class: "hint" }, wanted ? `${plural(wanted.size, "image")} match “${state.wanted}”` : DATA.mapped < COUNT ? `Computed from ${plural(DATA.mapped, "image")}; the others lie beside the most similar of these.` : "Similar images lie close to each other.")].filter((node) => node));
  if (by === "tag") { tagged = tagNames(); colorings.tag.names = [...tagged.map((name) => name), "no tag"]; }
  showKey();
}
function showKey() {
  const counts = new Map(), key = document.querySelector("#plane .key");
  for (const i of ALL) counts.set(colorings[by].of(i), (counts.get(colorings[by].of(i)) || 0) + 1);
  key.replaceChildren(...[...counts.keys()].sort((a, b) => a - b).map((g) => {
    const name = by === "tag" ? (g === 8 ? "no tag" : tagged[g > 8 ? g - 1 : g]) : colorings[by].names[g];
    const button = element("button", { type: "button", "aria-pressed": String(!off.has(g)), title: name }, marked(g), element("span", {}, name), element("small", {}, counts.get(g).toLocaleString("en-US")));
    button.addEventListener("click", () => { off.has(g) ? off.delete(g) : off.add(g); showKey(); map.draw(); });
    return button;
  }));
}

// -------------------------------------------------------------------------------------------------------------------
// Search and keys
const search = document.getElementById("search"), file = document.getElementById("picture"), byPicture = document.getElementById("by-picture");
let later = 0;
search.addEventListener("input", () => {
  clearTimeout(later);
  later = setTimeout(() => { state.wanted = search.value.trim().toLowerCase(); show(); }, COUNT > 5000 ? 150 : 0);
});
search.addEventListener("keydown", (event) => {
  const first = event.key === "Enter" ? [...(matching(search.value.trim().toLowerCase()) || [])][0] : undefined;
  if (first !== undefined) choose(first);
  if (event.key === "Escape") { search.value = ""; state.wanted = ""; show(); search.blur(); }
});
async function searchBy(picked) {
  if (!picked) return;
  byPicture.disabled = true;
  try {
    const found = await post("search", picked);
    if (answer) URL.revokeObjectURL(answer.url);
    answer = { ...found, name: picked.name || "your picture", url: URL.createObjectURL(picked) };
    state.wanted = search.value = "";
    state.view = "neighbors";
    show();
  } catch (error) {
    explain(error.message);
  }
  byPicture.disabled = false;
}
const withServer = "Search by a new picture needs the encoder, which is not in this file. Start the page with its local server: effssl browse RUN";
byPicture.hidden = !ANALYZED;
byPicture.addEventListener("click", () => DATA.query ? file.click() : explain(DATA.server ? "Search by a new picture needs the encoder: effssl browse RUN --features FILE" : withServer));
file.addEventListener("change", () => { searchBy(file.files[0]); file.value = ""; });
document.addEventListener("dragover", (event) => { if (DATA.query) event.preventDefault(); });
document.addEventListener("drop", (event) => { if (DATA.query) { event.preventDefault(); searchBy(event.dataTransfer.files[0]); } });
document.addEventListener("paste", (event) => { if (DATA.query && event.clipboardData.files.length) searchBy(event.clipboardData.files[0]); });

function explain(text) {
  const dialog = document.getElementById("keys");
  dialog.replaceChildren(element("p", {}, text), element("button", { type: "button", onclick: () => dialog.close() }, "close"));
  dialog.showModal();
}
function help() {
  const keys = [["/", "search"], ["1 … 9", "views"], ["arrows, Page, Home, End", "move"], ["Enter", "choose an image"], ["Space", "select it"], ["Shift + arrows or click", "select many"], ["Ctrl + A", "select all of the view"],
    ["t", "tag the selection, or the chosen image"], ["f or double click", "full size"], ["Esc", "close, clear"], ["+ − 0", "zoom the map"], ["Shift + drag", "select an area of the map"]];
  const dialog = document.getElementById("keys");
  dialog.replaceChildren(element("h2", {}, "Keys"), element("dl", {}, ...keys.flatMap(([key, what]) => [element("dt", {}, key), element("dd", {}, what)])),
    element("p", { class: "hint" }, DATA.query ? "Drop or paste a picture anywhere to search by it." : DATA.server || !ANALYZED ? "" : withServer),
    element("button", { type: "button", onclick: () => dialog.close() }, "close"));
  dialog.showModal();
}
document.getElementById("help").addEventListener("click", help);
document.addEventListener("keydown", (event) => {
  const busy = event.target.closest("input, select, dialog") || event.ctrlKey || event.metaKey || event.altKey;
  if (event.key === "Escape" && !event.target.closest("dialog, input")) {
    if (state.chosen !== null) choose(null); else if (state.selected.size) select([...state.selected], false);
  }
  if (busy) return;
  const number = Number(event.key);
  if (event.key === "/") search.focus();
  else if (event.key === "?") help();
  else if (event.key === "t" && (document.getElementById("tag") || state.chosen !== null)) (document.getElementById("tag") || document.querySelector("#inspector input")).focus();
  else if (event.key === "f" && state.chosen !== null) openWhole(state.chosen);
  else if (number >= 1 && views[number - 1] && (views[number - 1].name !== "selected" || state.selected.size)) {
    go(views[number - 1].name);
    document.querySelector(state.view === "map" ? "#plane canvas" : "#grid").focus();
  }
  else return;
  event.preventDefault();
});
document.querySelector("nav").addEventListener("keydown", (event) => {
  const tabs = [...document.querySelectorAll("nav [role=tab]")], at = tabs.indexOf(document.activeElement) + { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (tabs[at]) { const { id } = tabs[at]; tabs[at].click(); document.getElementById(id).focus(); }
});

listeners.push((what) => {
  showActions(document.getElementById("actions"), actions);
  if (what === "tags" || state.chosen !== null) showInspector(document.getElementById("inspector"), actions);
  if (map) map.draw();
  if (what === "tags" && by === "tag" && state.view === "map") showMapBar();
  if (state.view === "selected" && what === "selection") state.selected.size ? show(true) : go(views[0].name);
  else showTabs();
});
recall();
state.size = window.innerWidth < 600 ? "S" : "M";
const asked = location.hash.slice(1);
state.view = viewOf(asked) && asked !== "selected" ? asked : views[0].name;
show();
choose(null);
showActions(document.getElementById("actions"), actions);
