// What does the whole row look like, and where do the filters cut? The probability over the place in the order, both axes logarithmic.
import { at, count, h, percent, s } from "./dom.js";
import { FILTERS } from "./answer.js";

const HIGH = 300;

/** Draws the sorted row of a trace into its figure. */
export function showSorted(row, trace) {
  const figure = at("sorted");
  const wide = Math.max(300, figure.clientWidth || 640);
  const [left, right, top, bottom] = [44, 10, 20 + 16 * trace.filters.length, 30];
  const end = Math.max(2, trace.candidates);
  const x = (place) => left + ((wide - left - right) * Math.log(place + 1)) / Math.log(end + 1);
  const floor = Math.max(-12, Math.floor(Math.log10(Math.max(trace.curve.at(-1)?.p ?? 1e-12, 1e-12))));
  const y = (p) => top + ((HIGH - top - bottom) * Math.log10(Math.max(p, 10 ** floor))) / Math.min(floor, -1);
  const parts = [];
  for (let power = 0; power >= floor; power -= floor < -6 ? 3 : 1) {
    parts.push(s("line", { class: "axis", x1: left, x2: wide - right, y1: y(10 ** power), y2: y(10 ** power) }));
    parts.push(s("text", { x: left - 6, y: y(10 ** power) + 4, "text-anchor": "end" }, power > -3 ? `${100 * 10 ** power} %` : `1e${power}`));
  }
  for (let place = 1; place <= end; place *= 10) parts.push(s("text", { x: x(place - 1), y: HIGH - 8, "text-anchor": "middle" }, count(place)));
  const points = (curve) => curve.map(({ place, p }) => `${x(place).toFixed(1)},${y(p).toFixed(1)}`).join(" ");
  const { first, end: last } = trace.kept;
  parts.push(s("rect", { class: "kept", x: x(first), y: top, width: Math.max(2, x(last - 1) - x(first)), height: HIGH - top - bottom }));
  parts.push(s("polyline", { class: "curve", points: points(trace.curve) }));
  // The share of all the probability up to each place, from 0 at the bottom to 1 at the top.
  const share = ({ place, cumulative }) => `${x(place).toFixed(1)},${(HIGH - bottom - (HIGH - top - bottom) * Math.min(1, cumulative)).toFixed(1)}`;
  parts.push(s("polyline", { class: "sum", points: trace.curve.map(share).join(" ") }));
  trace.filters.forEach((filter, index) => {
    const lines = [[filter.kept[1], filter.given[1], filter.kept[1] - 0.5], [filter.kept[0], filter.given[0], filter.kept[0] - 0.5]];
    for (const [line, before, place] of lines) {
      if (line === before) continue;
      parts.push(s("line", { class: `cut c${index % 6}`, x1: x(place), x2: x(place), y1: 14 + 16 * index, y2: HIGH - bottom }));
    }
    const at = x(filter.kept[1] - 1);
    const beyond = at > wide / 2;
    const name = `${FILTERS[filter.name]?.[0] ?? filter.name}: ${count(filter.kept[1] - filter.kept[0])}`;
    parts.push(s("text", { class: `name c${index % 6}`, x: at + (beyond ? -6 : 8), y: 14 + 16 * index, "text-anchor": beyond ? "end" : "start" }, name));
  });
  const winner = trace.winner;
  if (winner && winner.place !== null) parts.push(s("circle", { class: "winner", cx: x(winner.place), cy: y(winner.p), r: 6 }));
  const told = `The row sorted by probability: ${count(trace.candidates)} tokens, of which places ${count(first + 1)} to ${count(last)} are kept, ${percent(trace.kept.share)} of the probability.`;
  figure.replaceChildren(s("svg", { viewBox: `0 0 ${wide} ${HIGH}`, role: "img", "aria-label": told }, ...parts));
  at("sorted-says").replaceChildren(told, h("span", { class: "legend" }, " Line: each token's probability. Dashes: their sum, from 0 at the bottom to 1. Dot: the token drawn."));
}
