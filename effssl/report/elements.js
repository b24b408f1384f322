"use strict";
// Elements, colors and marks that all charts share. Text from data becomes text nodes, never markup.
const DATA = JSON.parse(document.getElementById("data").textContent);
const COLORS = ["#1f77b4", "#d9650b", "#2a9d5c", "#c43b6b", "#8560c9", "#9a6a3c", "#0f9fb5", "#b59a00", "#7a7f87", "#e0483e"];
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "1 4", "12 4"];
const SHAPES = ["circle", "square", "triangle", "diamond", "cross", "plus", "down", "star", "ring", "box"];
const color = (i) => COLORS[i % COLORS.length];
// When the colors repeat, the shapes are shifted by one, so that every pair is different.
const shape = (i) => SHAPES[(i + Math.floor(i / COLORS.length)) % SHAPES.length];

function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}
function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}
function pick(label, options, change) {
  const select = element("select", {}, ...options.map(([value, text]) => element("option", { value }, text)));
  select.addEventListener("change", () => change(select.value));
  return element("label", {}, label + " ", select);
}
function number(value) {
  if (value === null || value === undefined) return "—";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(4)));
}

// Path of a mark around (x, y); the same for SVG and canvas.
function mark(kind, x, y, r) {
  const at = (points) => "M" + points.map(([a, b]) => (x + a * r).toFixed(2) + " " + (y + b * r).toFixed(2)).join("L") + "Z";
  if (kind === "circle" || kind === "ring") return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;
  if (kind === "square" || kind === "box") return at([[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]]);
  if (kind === "triangle") return at([[0, -1.15], [1.1, 0.85], [-1.1, 0.85]]);
  if (kind === "down") return at([[0, 1.15], [1.1, -0.85], [-1.1, -0.85]]);
  if (kind === "diamond") return at([[0, -1.25], [1.1, 0], [0, 1.25], [-1.1, 0]]);
  const arm = 0.36, plus = [[-arm, -1.1], [arm, -1.1], [arm, -arm], [1.1, -arm], [1.1, arm], [arm, arm], [arm, 1.1], [-arm, 1.1], [-arm, arm], [-1.1, arm], [-1.1, -arm], [-arm, -arm]];
  if (kind === "plus") return at(plus);
  if (kind === "cross") return at(plus.map(([a, b]) => [(a - b) * 0.72, (a + b) * 0.72]));
  return at([...Array(10).keys()].map((k) => [Math.sin(k * Math.PI / 5) * (k % 2 ? 0.55 : 1.3), -Math.cos(k * Math.PI / 5) * (k % 2 ? 0.55 : 1.3)]));
}
const hollow = (kind) => kind === "ring" || kind === "box";
function marked(i, size = 14) {
  const path = svg("path", { d: mark(shape(i), size / 2, size / 2, size / 3) });
  fill(path, hollow(shape(i)) ? { fill: "none", stroke: color(i), "stroke-width": 2 } : { fill: color(i) }, []);
  return svg("svg", { viewBox: `0 0 ${size} ${size}`, "aria-hidden": "true" }, path);
}

// Thumbnails: a sheet is one background image, and a tile shows its part of it.
function useSheet(sheet, name) {
  const style = element("style", {}, `.tile.${name}{background-image:url(${sheet.src})}`);
  document.head.append(style);
  return (index, size) => {
    const column = index % sheet.columns, row = Math.floor(index / sheet.columns);
    const place = `width:${size}px;height:${size}px;background-size:${sheet.columns * size}px ${sheet.rows * size}px;background-position:${-column * size}px ${-row * size}px`;
    return element("i", { class: `tile ${name}${sheet.side < size ? " crisp" : ""}`, style: place, "data-index": index });
  };
}
