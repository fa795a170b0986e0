// How was the token chosen? The race, played: tokens come in by their scores, tiles that cannot hold the winner stay closed.
import { at, count, h, s } from "./dom.js";
import { shown } from "./rows.js";

const HIGH = 280;
const LASTS_MS = 3500;
let playing = 0;

/** Shows the race of a trace at its end; `play` runs it from its start. */
export function showRace(row, trace) {
  cancelAnimationFrame(playing);
  const into = at("race");
  if (!trace.race) {
    at("race-says").textContent = "There was no race: the choice is greedy, or nothing may be drawn.";
    return into.replaceChildren();
  }
  const { race } = trace;
  const wide = Math.max(300, into.clientWidth || 640);
  const [left, right, top, bottom] = [12, 12, 14, 96];
  const field = race.field.filter((runner) => runner.arrival > 0);
  const logs = field.map((runner) => Math.log2(runner.arrival));
  const [early, late] = [Math.min(...logs), Math.max(...logs) + 0.01];
  const x = (arrival) => left + ((wide - left - right) * (Math.log2(arrival) - early)) / (late - early);
  const low = Math.min(...field.map((runner) => runner.y), -1);
  const y = (weight) => top + ((HIGH - top - bottom) * weight) / low;
  const winner = trace.winner?.id;
  const dots = field.map((runner) => ({
    runner, when: (Math.log2(runner.arrival) - early) / (late - early),
    dot: s("circle", { class: runner.id === winner ? "winner" : "runner", cx: x(runner.arrival), cy: y(runner.y), r: runner.id === winner ? 7 : 3.5 }),
  }));
  const leaders = new Set(race.leaders.slice(0, wide < 500 ? 2 : 4).map((token) => token.id));
  const names = dots.filter(({ runner }) => leaders.has(runner.id)).map(({ runner, when }) => ({ when, dot: s("text", { class: runner.id === winner ? "name win" : "name", x: Math.min(x(runner.arrival) + 11, wide - 80), y: y(runner.y) + 4 }, shown(row, runner.id)) }));
  // The line of all points whose score is the winner's: a token on its upper left beats the winner, and none is there.
  const best = race.best;
  const line = s("line", { class: "front", x1: x(2 ** early), y1: y(best + early), x2: x(2 ** late), y2: y(best + late) });
  const clip = s("clipPath", { id: "race-area" }, s("rect", { x: 0, y: 0, width: wide, height: HIGH - bottom + 6 }));
  const tiles = race.bounds.slice(0, 192);
  const across = Math.min(tiles.length, Math.floor((wide - left - right) / 14));
  const squares = tiles.map((tile, index) => ({
    when: index / Math.max(tiles.length, 1), open: tile.bound >= best,
    dot: s("rect", { class: tile.bound >= best ? "tile open" : "tile", x: left + (index % across) * 14, y: HIGH - bottom + 30 + 14 * Math.floor(index / across), width: 11, height: 11, rx: 2 }, s("title", {}, `tile ${tile.tile}: bound ${tile.bound.toFixed(2)}`)),
  }));
  const tall = HIGH - bottom + 36 + 14 * Math.ceil(tiles.length / across);
  const label = `The race of ${count(race.runners)} tokens: ${trace.winner ? shown(row, winner) : "none"} wins; ${count(race.open_tiles)} of ${count(race.tiles)} tiles were opened.`;
  const svg = s("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": label }, clip,
    s("g", { "clip-path": "url(#race-area)" }, line), ...dots.map(({ dot }) => dot), ...names.map(({ dot }) => dot),
    s("text", { x: left, y: HIGH - bottom + 20 }, "Tiles by their bound: filled ones had to be opened"), ...squares.map(({ dot }) => dot));
  into.replaceChildren(svg);
  at("race-says").textContent = `${label} To the left: arrived early. High up: likely. The winner has the best of both; the slanted line is its score, and nobody lies beyond it.`;

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
