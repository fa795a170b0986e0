// What does the whole row look like, and where do the filters cut? The probability over the place in the order, both axes logarithmic.
import { at, count, h, percent, s } from "./dom.js";
import { FILTERS } from "./parameters.js";

const HIGH = 300;
/** Probabilities below 10 to this power are not drawn. */
const FLOOR = -12;

/** Places numbers above the lines that they name: in the first line of numbers where there is room. */
function badges(lines) {
  const rows = [];
  return lines.map((line) => {
    let row = 0;
    while (rows[row]?.some((x) => Math.abs(x - line.x) < 20)) row += 1;
    (rows[row] ??= []).push(line.x);
    return { ...line, row };
  });
}

/** Draws the sorted row of a trace into its figure. */
export function showSorted(row, trace) {
  const figure = at("sorted");
  const wide = Math.max(300, figure.clientWidth || 640);
  const [left, right, bottom] = [64, 12, 30];
  const end = Math.max(2, trace.candidates);
  const x = (place) => left + ((wide - left - right) * Math.log(place + 1)) / Math.log(end + 1);
  // A filter has a line behind what it kept, and one before it if it dropped the likeliest tokens.
  const cuts = trace.filters.flatMap((filter, index) => [filter.kept[1] < filter.given[1] && filter.kept[1], filter.kept[0] > filter.given[0] && filter.kept[0]].filter((place) => place !== false).map((place) => ({ index, x: x(place - 0.5), name: FILTERS[filter.name]?.[0] ?? filter.name })));
  const lines = badges(cuts);
  const top = 16 + 20 * Math.max(0, ...lines.map((line) => line.row + 1));
  const floor = Math.max(FLOOR, Math.floor(Math.log10(Math.max(trace.curve.at(-1)?.p ?? 1, 10 ** FLOOR))));
  const y = (p) => top + ((HIGH - top - bottom) * Math.log10(Math.max(p, 10 ** floor))) / Math.min(floor, -1);
  const parts = [];
  for (let power = 0; power >= floor; power -= floor < -6 ? 3 : 1) {
    parts.push(s("line", { class: "axis", x1: left, x2: wide - right, y1: y(10 ** power), y2: y(10 ** power) }));
    parts.push(s("text", { x: left - 6, y: y(10 ** power) + 4, "text-anchor": "end" }, power >= -6 ? `${Number((100 * 10 ** power).toPrecision(1))}\u00a0%` : `1e${power + 2}\u00a0%`));
  }
  for (let place = 1; place <= end; place *= 10) parts.push(s("text", { x: Math.min(x(place - 1), wide - right - 14), y: HIGH - 8, "text-anchor": "middle" }, count(place)));
  const { first, end: last } = trace.kept;
  if (last > first) parts.push(s("rect", { class: "kept", x: x(first), y: top, width: Math.max(2, x(last - 1) - x(first)), height: HIGH - top - bottom }));
  // The line ends where the probability falls below the lowest power; what lies beyond is said in words.
  const seen = trace.curve.filter(({ p }) => p >= 10 ** floor);
  parts.push(s("polyline", { class: "curve", points: seen.map(({ place, p }) => `${x(place).toFixed(1)},${y(p).toFixed(1)}`).join(" ") }));
  // The share of all the probability up to each place, from 0 at the bottom to 1 at the top.
  const share = ({ place, cumulative }) => `${x(place).toFixed(1)},${(HIGH - bottom - (HIGH - top - bottom) * Math.min(1, cumulative)).toFixed(1)}`;
  parts.push(s("polyline", { class: "sum", points: trace.curve.map(share).join(" ") }));
  for (const line of lines) parts.push(s("line", { class: `cut c${line.index % 6}`, x1: line.x, x2: line.x, y1: 12 + 20 * line.row, y2: HIGH - bottom }));
  const winner = trace.winner;
  if (winner && winner.place !== null && winner.p >= 10 ** floor) parts.push(s("circle", { class: "winner", cx: x(winner.place), cy: y(winner.p), r: 6 }));
  for (const line of lines) parts.push(s("g", { class: `badge c${line.index % 6}` }, s("title", {}, line.name), s("circle", { cx: line.x, cy: 12 + 20 * line.row, r: 9 }), s("text", { x: line.x, y: 16 + 20 * line.row, "text-anchor": "middle" }, line.index + 1)));
  const told = `The row sorted by probability: ${count(trace.candidates)} tokens, of which places ${count(first + 1)} to ${count(last)} are kept, ${percent(trace.kept.share)} of the probability.`;
  figure.replaceChildren(s("svg", { viewBox: `0 0 ${wide} ${HIGH}`, role: "img", "aria-label": told }, ...parts));
  const beyond = seen.length < trace.curve.length ? ` It ends where it falls below ${percent(10 ** floor)}.` : "";
  const numbers = lines.length ? " Numbers: the cuts of the filters below." : "";
  at("sorted-says").replaceChildren(told, h("span", { class: "legend" }, ` Line: each token's probability.${beyond} Dashes: their sum, from 0 at the bottom to 1. Dot: the token drawn.${numbers}`));
}
