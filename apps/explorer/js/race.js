// How was the token chosen? The race, played: tokens come in by their scores, tiles that cannot hold the winner stay closed.
import { at, count, h, s } from "./dom.js";
import { shown } from "./rows.js";

const HIGH = 300;
const LASTS_MS = 3500;
let playing = 0;

/** Finds a place beside each point where its name covers no other name and no edge; a name without one is left out. */
function named(points, wide, high) {
  const taken = [];
  return points.flatMap(({ x, y, text, ...rest }) => {
    const width = 7.5 * [...text].length;
    const places = [[x + 11, y + 4], [x - 11 - width, y + 4], [x - width / 2, y - 10], [x - width / 2, y + 20]];
    const free = places.find(([left, base]) => left >= 2 && left + width <= wide - 2 && base >= 14 && base <= high - 2 && taken.every((box) => left > box.left + box.width + 4 || left + width + 4 < box.left || Math.abs(base - box.base) > 15));
    if (!free) return [];
    taken.push({ left: free[0], base: free[1], width });
    return [{ ...rest, text, x: free[0], y: free[1] }];
  });
}

/** Shows the race of a trace at its end; `play` runs it from its start. */
export function showRace(row, trace) {
  cancelAnimationFrame(playing);
  const into = at("race");
  at("play").hidden = !trace.race;
  if (!trace.race) {
    at("race-says").textContent = "There was no race: the choice is greedy, or nothing may be drawn.";
    return into.replaceChildren();
  }
  const { race } = trace;
  const wide = Math.max(300, into.clientWidth || 640);
  const [left, right, top, bottom] = [64, 12, 14, 116];
  const field = race.field.filter((runner) => runner.arrival > 0);
  const logs = field.map((runner) => Math.log2(runner.arrival));
  const [early, late] = [Math.min(...logs), Math.max(...logs) + 0.01];
  const x = (arrival) => left + 10 + ((wide - left - right - 20) * (Math.log2(arrival) - early)) / (late - early);
  const low = Math.min(...field.map((runner) => runner.y), -1);
  const foot = HIGH - bottom;
  const y = (weight) => top + ((foot - top - 8) * weight) / low;
  const axes = [s("line", { class: "axis", x1: left, x2: wide - right, y1: foot, y2: foot }), s("line", { class: "axis", x1: left, x2: left, y1: top, y2: foot })];
  const decades = (late - early) * Math.log10(2);
  const apart = Math.ceil(decades / 6);
  for (let power = Math.floor(early * Math.log10(2)); power <= late * Math.log10(2); power += apart)
    for (const digit of decades < 2 ? [1, 2, 5] : [1]) {
      const arrival = digit * 10 ** power;
      if (Math.log2(arrival) < early || Math.log2(arrival) > late) continue;
      axes.push(s("line", { class: "axis", x1: x(arrival), x2: x(arrival), y1: top, y2: foot }), s("text", { x: x(arrival), y: foot + 15, "text-anchor": "middle" }, Math.abs(power) < 4 ? String(Number(arrival.toPrecision(1))) : `${digit}e${power}`));
    }
  const below = Math.ceil((-low * Math.log10(2)) / 4);
  for (let power = 0; power >= low * Math.log10(2); power -= Math.max(1, below))
    axes.push(s("text", { x: left - 6, y: y(power / Math.log10(2)) + 4, "text-anchor": "end" }, power > -4 ? `1/${count(10 ** -power)}`.replace(/^1\/1$/, "1") : `1e${power}`));
  axes.push(s("text", { x: wide - right, y: foot + 31, "text-anchor": "end" }, "time of arrival \u2192"), s("text", { x: 2, y: foot + 15 }, "\u2191 weight"));
  const winner = trace.winner?.id;
  const dots = field.map((runner) => ({
    runner, when: (Math.log2(runner.arrival) - early) / (late - early),
    dot: s("circle", { class: runner.id === winner ? "winner" : "runner", cx: x(runner.arrival), cy: y(runner.y), r: runner.id === winner ? 7 : 3.5 }),
  }));
  const leaders = race.leaders.slice(0, wide < 500 ? 3 : 5).flatMap((token) => dots.filter(({ runner }) => runner.id === token.id));
  const names = named(leaders.map(({ runner, when }) => ({ when, id: runner.id, text: shown(row, runner.id), x: x(runner.arrival), y: y(runner.y) })), wide, foot)
    .map(({ when, id, text, x, y }) => ({ when, dot: s("text", { class: id === winner ? "name win" : "name", x, y }, text) }));
  // The line of all points whose score is the winner's: a token on its upper left beats the winner, and none is there.
  const best = race.best;
  const line = s("line", { class: "front", x1: x(2 ** early), y1: y(best + early), x2: x(2 ** late), y2: y(best + late) });
  const clip = s("clipPath", { id: "race-area" }, s("rect", { x: left, y: 0, width: wide - left, height: foot }));
  const tiles = race.bounds.slice(0, 192);
  const across = Math.min(tiles.length, Math.floor((wide - right - 2) / 14));
  const squares = tiles.map((tile, index) => ({
    when: index / Math.max(tiles.length, 1), open: tile.bound >= best,
    dot: s("rect", { class: tile.bound >= best ? "tile open" : "tile", x: 2 + (index % across) * 14, y: foot + 60 + 14 * Math.floor(index / across), width: 11, height: 11, rx: 2 }, s("title", {}, `tile ${tile.tile}: bound ${tile.bound.toFixed(2)}`)),
  }));
  const tall = foot + 66 + 14 * Math.ceil(tiles.length / across);
  const label = `The race of ${count(race.runners)} tokens: ${trace.winner ? `\u201c${shown(row, winner)}\u201d` : "none"} wins; ${count(race.open_tiles)} of ${count(race.tiles)} tiles were opened.`;
  const svg = s("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": label }, clip, ...axes,
    s("g", { "clip-path": "url(#race-area)" }, line), ...dots.map(({ dot }) => dot), ...names.map(({ dot }) => dot),
    s("text", { x: 2, y: foot + 51 }, "Tiles by their bound: filled ones had to be opened"), ...squares.map(({ dot }) => dot));
  into.replaceChildren(svg);
  const closed = race.open_tiles === race.tiles && trace.filters.length ? " No tile stayed closed, since few tokens run here; without filters most do." : "";
  const first = race.runners > field.length ? ` Of the ${count(race.runners)} the likeliest and the leaders are drawn, ${count(field.length)}.` : "";
  const firm = trace.radius ? ` The winner stays while every logit moves by less than ${trace.radius.toPrecision(2)}, its radius.` : "";
  const adaptive = trace.filters.some(({ name }) => name === "adaptive_target");
  const weight = adaptive ? "its probability is near the one that adaptive-p favours; the weight is by how near" : "likely; the weight is the probability as a fraction of the likeliest runner's";
  at("race-says").replaceChildren(label, h("span", {}, ` To the left: arrived early. High up: ${weight}. The winner has the best of both; the slanted line is its score, and nobody lies beyond it.${first}${closed}${firm}`));

  const frame = (share) => {
    for (const { when, dot } of dots) dot.style.opacity = when <= share ? "" : "0";
    for (const { when, dot } of names) dot.style.opacity = when <= share ? "" : "0";
    for (const { when, open, dot } of squares) dot.classList.toggle("open", open && when <= share);
    line.style.opacity = share >= 1 ? "" : "0";
  };
  at("play").onclick = () => {
    cancelAnimationFrame(playing);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return frame(1);
    const began = performance.now();
    const step = (now) => {
      const share = Math.min(1, (now - began) / LASTS_MS);
      frame(share);
      if (share < 1) playing = requestAnimationFrame(step);
    };
    playing = requestAnimationFrame(step);
  };
}
