// The chosen image: larger, with its name, tag and neighbors.
function showInspector(box, act) {
  const i = state.chosen;
  document.body.classList.toggle("inspecting", i !== null);
  if (i === null) {
    box.replaceChildren(element("p", { class: "hint" }, ANALYZED ? "Choose an image to see it larger, with its nearest neighbors." : "Choose an image to see it larger."));
    return;
  }
  const large = element("a", { class: "large", href: DATA.server ? `image/${i}` : fileLink(i), target: "_blank", rel: "noopener", title: "full size (f)" }, ...largest(i));
  if (!DATA.server && !DATA.files[i]) large.removeAttribute("href");
  if (!DATA.server && !DATA.files[i]) large.removeAttribute("title");
  if (DATA.server) large.addEventListener("click", (event) => { event.preventDefault(); act.open(i); });
  const input = element("input", { "aria-label": "tag of this image", placeholder: "tag", list: "tag-names", value: state.tags.get(i) || "", maxlength: 200 });
  input.addEventListener("change", () => tag([i], input.value.trim()));
  const chosen = state.selected.has(i);
  box.replaceChildren(
    element("div", { class: "top" }, element("h2", { title: fullName(i) }, shortName(i)), element("button", { type: "button", class: "close", "aria-label": "close", onclick: () => act.choose(null) }, "×")),
    large,
    element("dl", {}, ...facts(i).flatMap(([name, value]) => [element("dt", {}, name), element("dd", { title: value }, value)])),
    element("div", { class: "do" }, input, element("button", { type: "button", "aria-pressed": String(chosen), onclick: () => select([i], !chosen) }, chosen ? "✓ selected" : "select"),
      ANALYZED ? element("button", { type: "button", onclick: () => act.view("neighbors") }, "neighbors") : null,
      large.href && !DATA.server ? element("a", { class: "button", href: large.href, target: "_blank", rel: "noopener" }, "full size") : DATA.server ? element("button", { type: "button", onclick: () => act.open(i) }, "full size") : null),
    ...nearest(i, act));
}
// The file itself where there is one: thumbnails of a page without a server are small. One that the browser does not show,
// or may not, as from a page on the web, is a thumbnail at its own size.
function largest(i) {
  if (DATA.server || !DATA.files[i]) return [picture(i, 300)];
  const image = element("img", { alt: "", src: fileLink(i), decoding: "async", draggable: "false" });
  image.addEventListener("load", () => crispIfTiny(image));
  image.addEventListener("error", () => { image.closest(".large").classList.add("own-size"); image.replaceWith(picture(i, 300)); });
  return [image];
}
function facts(i) {
  const folder = DATA.names[i].split("/").slice(0, -1).join("/");
  return [["folder", folder], ["label", labelOf(i)], ["cluster", ANALYZED ? String(CLUSTER[i] + 1) : ""]].filter(([, value]) => value);
}
function nearest(i, act) {
  if (!ANALYZED || !DATA.k) return [];
  const rows = neighborsOf(i), similar = similarityOf(i), own = labelOf(i);
  const agree = own ? rows.filter((other) => labelOf(other) === own).length : null;
  return [element("h3", {}, "Nearest neighbors"), agree === null ? null : element("p", { class: "hint" }, `${agree} of ${rows.length} have the same label`),
    element("div", { class: "near" }, ...rows.map((other, k) => element("button", { type: "button", title: `${fullName(other)}\n${labelOf(other)}`.trim(), class: state.selected.has(other) ? "on" : "", onclick: () => act.choose(other) },
      element("span", { class: "frame" }, picture(other, 84)), element("span", {}, similar[k].toFixed(3)))))].filter((node) => node);
}
