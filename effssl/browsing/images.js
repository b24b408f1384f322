// What is known of each image, and what the user has chosen, selected and tagged.
function typed(text, Kind) {  // an array that was packed as text
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Kind(bytes.buffer);
}
const COUNT = DATA.names.length, ALL = [...Array(COUNT).keys()], ANALYZED = DATA.maps !== null;
const CLUSTER = ANALYZED ? typed(DATA.cluster, Uint8Array) : null, ORDER = ANALYZED ? typed(DATA.order, Uint32Array) : null;
const NEAR = ANALYZED ? typed(DATA.neighbors, Uint32Array) : null, SIMILARITY = ANALYZED ? typed(DATA.similarity, Uint16Array) : null;
const state = { view: "", wanted: "", chosen: null, size: "M", selected: new Set(), tags: new Map(Object.entries(DATA.tags).map(([row, tag]) => [Number(row), tag])), unsaved: false };

const shortName = (i) => !DATA.root && /^\d+$/.test(DATA.names[i]) ? `image ${DATA.names[i]}` : DATA.names[i].split("/").pop();
// A name without its middle: its end, which is more specific, keeps twice as much as its beginning.
function cut(name, most) {
  const start = Math.floor((most - 1) / 3);
  return name.length <= most ? name : `${name.slice(0, start)}…${name.slice(start + 1 - most)}`;
}
const fullName = (i) => DATA.root ? `${DATA.root}/${DATA.names[i]}` : DATA.names[i];
const labelOf = (i) => DATA.labels && DATA.labels[i] >= 0 ? DATA.classes[DATA.labels[i]] : "";
const classOf = (i) => labelOf(i).replace(/^\d+$/, "class $&");  // a number alone says nothing in a caption
const fileLink = (i) => `file://${fullName(i).split("/").map(encodeURIComponent).join("/")}`;
const plural = (n, word) => `${n.toLocaleString("en-US")} ${word}${n === 1 ? "" : "s"}`;
const neighborsOf = (i) => [...NEAR.subarray(i * DATA.k, (i + 1) * DATA.k)];
const similarityOf = (i) => [...SIMILARITY.subarray(i * DATA.k, (i + 1) * DATA.k)].map((v) => v / 10000);

// Text that a search looks into, built when it is first needed.
let texts = null;
function matching(wanted) {
  if (!wanted) return null;
  texts = texts || ALL.map((i) => `${DATA.names[i]}\n${labelOf(i)}\n${ANALYZED ? `cluster ${CLUSTER[i] + 1}` : ""}\n`.toLowerCase());
  const words = wanted.split(/\s+/).filter((word) => word), exact = /^cluster \d+$/.test(wanted) ? `\n${wanted}\n` : null;
  return new Set(ALL.filter((i) => {
    const text = texts[i] + (state.tags.get(i) || "").toLowerCase();
    return exact ? text.includes(exact) : words.every((word) => text.includes(word));
  }));
}

// Thumbnails: in a file they are one long text, of which each image is a part; a server makes them as large as needed.
const THUMBS = DATA.server ? null : document.getElementById("thumbs").textContent, ENDS = DATA.server ? null : typed(DATA.thumbs, Uint32Array);
const LARGEST = 640;
function source(i, side) {
  if (DATA.server) {
    const pixels = Math.min(LARGEST, Math.ceil(side * (window.devicePixelRatio || 1) / 64) * 64);
    return `thumb/${i}?side=${pixels}`;
  }
  const start = i ? ENDS[i - 1] : 0;
  return ENDS[i] > start ? `data:image/webp;base64,${THUMBS.slice(start, ENDS[i])}` : null;
}
function crispIfTiny(image) {
  if (Math.max(image.naturalWidth, image.naturalHeight) <= 48) image.classList.add("crisp");
}
function picture(i, side) {  // never larger than its pixels, unless these are few: then in whole squares
  const from = source(i, side), missing = () => element("span", { class: "missing" }, "not found");
  if (from === null) return missing();
  const image = element("img", { alt: "", src: from, decoding: "async", draggable: "false", "data-index": i });
  image.addEventListener("load", () => crispIfTiny(image));
  image.addEventListener("error", () => image.replaceWith(missing()));
  return image;
}

// Thumbnails for the map, decoded when they are first seen; the oldest are forgotten.
const KEPT = 3000, decoded = new Map();
function decodedPicture(i, ready) {
  if (!decoded.has(i)) {
    const from = source(i, 72), image = new Image();
    decoded.set(i, image);
    if (decoded.size > KEPT) decoded.delete(decoded.keys().next().value);
    image.addEventListener("load", ready);
    if (from) image.src = from;
  }
  const image = decoded.get(i);
  return image.naturalWidth ? { image, x: 0, y: 0, width: image.naturalWidth, height: image.naturalHeight } : null;
}

// -------------------------------------------------------------------------------------------------------------------
// Selection and tags. Each image has one tag at most: it may become its label.
const listeners = [];
const changed = (what) => listeners.forEach((listener) => listener(what));

function select(rows, on = true) {
  for (const i of rows) on ? state.selected.add(i) : state.selected.delete(i);
  changed("selection");
}
const KEY = `effssl browse ${DATA.digest}`;
function recall() {
  try {
    for (const [row, tag] of JSON.parse(DATA.server ? "[]" : localStorage.getItem(KEY) || "[]")) if (row < COUNT && !state.tags.has(row)) state.tags.set(row, tag);
  } catch { /* storage is off: tags last as long as the page */ }
}
function keep() {  // tags outlast the page: in a server, or in the browser's storage
  if (DATA.server) {
    state.unsaved = !DATA.saves;
    post("tags", JSON.stringify(Object.fromEntries(state.tags))).catch((error) => { state.unsaved = true; report(error.message); });
    return;
  }
  try {
    localStorage.setItem(KEY, JSON.stringify([...state.tags]));
  } catch {
    state.unsaved = true;
  }
}
function tag(rows, name) {  // an empty name removes the tag
  for (const i of rows) name ? state.tags.set(i, name) : state.tags.delete(i);
  keep();
  changed("tags");
}
const tagNames = () => [...new Set(state.tags.values())].sort();
async function post(where, body) {
  const answer = await fetch(where, { method: "POST", body }).catch(() => { throw new Error("the server has ended; start effssl browse again"); });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}
