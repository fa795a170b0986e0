// What all plots share: SVG elements, scales, axes, words for tokens and numbers.

const trace = JSON.parse(document.getElementById("trace").textContent);

function element(name, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  for (const child of children) node.append(child);
  return node;
}

// A text with a tooltip where it was cut.
function text(x, y, words, attributes) {
  return element("text", { x, y, ...attributes }, words);
}

function line(x1, y1, x2, y2, attributes) {
  return element("line", { x1, y1, x2, y2, class: "axis", ...attributes });
}

// Maps from..to onto a..b, by logarithm if asked.
function scale(from, to, a, b, logarithmic) {
  const f = logarithmic ? Math.log : (x) => x;
  const span = f(to) - f(from) || 1;
  return (x) => a + ((f(x) - f(from)) / span) * (b - a);
}

function path(points) {
  return points.map(([x, y], i) => (i ? "L" : "M") + x.toFixed(1) + " " + y.toFixed(1)).join("");
}

const BLANKS = { " ": "\u2423", "\n": "\u21b5", "\t": "\u21e5" };

function word(token, length) {
  if (token.text === undefined) return "#" + token.id;
  const shown = token.text.replace(/[ \n\t]/g, (c) => BLANKS[c]);
  return length && shown.length > length ? shown.slice(0, length - 1) + "\u2026" : shown;
}

function whole(n) {
  return Math.round(n).toLocaleString("en-US");
}

function percent(p) {
  const x = p * 100;
  if (x >= 99.95) return "100\u202f%";
  if (x >= 10) return x.toFixed(1) + "\u202f%";
  if (x >= 0.01) return x.toFixed(2) + "\u202f%";
  return p < 1e-9 ? "0\u202f%" : "1 in " + whole(1 / p);
}

function powerOfTen(exponent) {
  const small = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079";
  if (exponent === 0) return "1";
  return "10" + (exponent < 0 ? "\u207b" : "") + String(Math.abs(exponent)).replace(/\d/g, (d) => small[d]);
}

// A horizontal logarithmic axis of ranks, with lines up to the top of the plot.
function rankAxis(svg, x, last, top, bottom, title) {
  for (let rank = 1; rank <= last; rank *= 10) {
    svg.append(line(x(rank), top, x(rank), bottom));
    svg.append(text(x(rank), bottom + 18, whole(rank), { "text-anchor": rank === 1 ? "start" : "middle" }));
  }
  svg.append(text(x(last), bottom + 36, title, { "text-anchor": "end" }));
}

// A plot as wide as its place: `draw` gets an empty SVG and the width, and returns the height.
function plot(place, draw) {
  const width = Math.max(260, place.clientWidth);
  const svg = element("svg", { role: "img" });
  const height = draw(svg, width);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  place.replaceChildren(svg);
}
