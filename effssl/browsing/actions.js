// What can be done with the selected images: tag, export, copy.
function report(text) {
  const box = document.getElementById("said");
  if (box) box.textContent = text;
}
function download(name, text) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
const cell = (text) => /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
function asCsv(rows) {  // as effssl classify reads it: an image without a tag is one that is not labelled yet
  const head = ["file", "label", ...(DATA.labels ? ["known_label"] : []), ...(ANALYZED ? ["cluster"] : [])];
  const lines = rows.map((i) => [DATA.names[i], state.tags.get(i) || "", ...(DATA.labels ? [labelOf(i)] : []), ...(ANALYZED ? [String(CLUSTER[i] + 1)] : [])]);
  return [head, ...lines].map((line) => line.map(cell).join(",") + "\n").join("");
}
const asText = (rows) => rows.map((i) => `${fullName(i)}\n`).join("");

function showActions(box, act) {
  const focused = document.activeElement && box.contains(document.activeElement) ? document.activeElement.id : null;
  const rows = [...state.selected].sort((a, b) => a - b), tagged = [...state.tags.keys()].sort((a, b) => a - b);
  const said = element("span", { id: "said", class: "hint" });
  box.hidden = !rows.length && !tagged.length;
  if (box.hidden) { box.replaceChildren(); return; }
  const button = (text, onclick, id = null) => element("button", { type: "button", onclick, id }, text);
  const input = element("input", { id: "tag", "aria-label": "tag of the selected images", placeholder: "tag", list: "tag-names", maxlength: 200 });
  const apply = () => { tag(rows, input.value.trim()); report(input.value.trim() ? `${plural(rows.length, "image")} tagged` : "tags removed"); };
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") apply(); });
  const onRows = rows.length ? [
    element("strong", {}, `${rows.length.toLocaleString("en-US")} selected`), button("clear", () => select(rows, false), "clear"), button("show", () => act.view("selected")),
    element("span", { class: "together" }, input, button("tag", apply)),
    element("span", { class: "together" }, button(".txt", () => download("selection.txt", asText(rows)), "export-txt"), button(".csv", () => download("selection.csv", asCsv(rows)), "export-csv")),
    DATA.server ? button("copy files …", () => copy(rows), "copy") : null] : [];
  const onTags = tagged.length ? [element("span", { class: "together" }, button(`${plural(tagged.length, "tag")}: labels.csv`, () => { state.unsaved = false; download("labels.csv", asCsv(tagged)); }, "export-tags")),
    DATA.saves ? element("span", { class: "hint" }, `saved in ${DATA.saves}`) : null] : [];
  box.replaceChildren(...[...onRows, ...onTags, said, element("datalist", { id: "tag-names" }, ...tagNames().map((value) => element("option", { value })))].filter((node) => node));
  if (focused && document.getElementById(focused)) document.getElementById(focused).focus();
}
function copy(rows) {
  const dialog = document.getElementById("keys"), input = element("input", { "aria-label": "folder", placeholder: "new or empty folder", size: 30 }), said = element("p", { class: "hint" });
  const go = async () => {
    try {
      const found = await post("copy", JSON.stringify({ rows, folder: input.value.trim() }));
      dialog.close();
      report(`${plural(rows.length, "image")} copied to ${found.folder}`);
    } catch (error) { said.textContent = error.message; }
  };
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") go(); });
  dialog.replaceChildren(element("h2", {}, `Copy ${plural(rows.length, "image")} to a folder`), element("p", { class: "hint" }, "With the sub-folders they are in. Relative to where effssl browse was started."), input,
    element("div", { class: "do" }, element("button", { type: "button", onclick: go }, "copy"), element("button", { type: "button", onclick: () => dialog.close() }, "cancel")), said);
  dialog.showModal();
}
window.addEventListener("beforeunload", (event) => { if (state.unsaved && state.tags.size) event.preventDefault(); });
