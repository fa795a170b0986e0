// What do two settings make of one row, one seed and the same arrivals? Both answers side by side.
import { at, count, h, head, percent } from "./dom.js";
import { NEUTRAL } from "./parameters.js";
import { shown } from "./rows.js";

/** The settings in words: those that are not neutral. */
export function words(settings) {
  const set = Object.entries(settings).filter(([name, value]) => value !== NEUTRAL[name] && name !== "seed" && name !== "draw");
  return set.map(([name, value]) => `${name} ${value}`).join(", ") || "neutral";
}

/** Shows two traces of one row beside each other; nothing but an invitation where there is no second one. */
export function showCompare(row, a, b, settings, pinned) {
  if (!b) return at("compare").replaceChildren(h("p", {}, "Pin the settings of now, then move the sliders: both answers appear here, drawn from the same arrivals."));
  const side = (title, trace, set) => h("div", { class: "side" }, h("h3", {}, title), h("p", {}, words(set)),
    h("p", { class: "big" }, trace.winner ? shown(row, trace.winner.id) : "no token"),
    h("p", {}, `${count(trace.kept.end - trace.kept.first)} tokens kept, ${percent(trace.kept.share)} of the probability; entropy ${trace.temperature.entropy_in_use_bits.toFixed(2)} bits.`));
  const other = new Map(b.tokens.map((token) => [token.id, token]));
  const ids = [...new Set([...a.tokens.slice(0, 12), ...b.tokens.slice(0, 12)].map((token) => token.id))];
  const mine = new Map(a.tokens.map((token) => [token.id, token]));
  const share = (map, id) => (map.has(id) ? (map.get(id).p_kept > 0 ? percent(map.get(id).p_kept) : "out") : "behind place 40");
  const table = h("table", {}, head("token", "now", "pinned"),
    h("tbody", {}, ...ids.map((id) => h("tr", {}, h("th", { scope: "row", class: "word" }, shown(row, id)), h("td", { class: "figure" }, share(mine, id)), h("td", { class: "figure" }, share(other, id))))));
  const verdict = a.winner?.id === b.winner?.id ? "Both draw the same token." : "They draw different tokens.";
  at("compare").replaceChildren(h("p", { id: "verdict" }, verdict), h("div", { class: "sides" }, side("Now", a, settings), side("Pinned, on the seed of now", b, pinned)), table);
}
