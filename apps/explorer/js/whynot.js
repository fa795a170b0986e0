// Why is a token not in the set, or not the one drawn? The core traces the row with that token forced, which changes nothing before it.
import { at, count, h, percent } from "./dom.js";
import { FILTERS } from "./parameters.js";
import { shown } from "./rows.js";

/** Answers in words, as a list of steps. */
function reasons(row, trace, token) {
  const name = `\u201c${shown(row, token.id)}\u201d (id ${token.id})`;
  if (token.place === null) {
    const raw = token.raw === null ? "minus infinity already as it came" : `${token.raw.toFixed(3)} as it came`;
    return [`${name} is banned: its logit was ${raw}, and after the edits it is at minus infinity.`];
  }
  const said = [`${name} has the logit ${token.logit.toFixed(3)}${token.raw !== token.logit ? ` (${token.raw?.toFixed(3)} before the edits)` : ""}: place ${count(token.place + 1)}, ${percent(token.p)}.`];
  if (trace.winner?.id === token.id) return [...said, "It is the token that was drawn."];
  if (trace.temperature.in_use === 0) return [...said, `The choice is greedy: only the first token of the order can win, and ${count(token.place)} come before it.`];
  for (const filter of trace.filters) {
    const [from, to] = filter.kept;
    const label = FILTERS[filter.name]?.[0] ?? filter.name;
    // Adaptive-p keeps every token; it says how they race.
    if (token.place >= from && token.place < to) said.push(filter.name === "adaptive_target" ? `${label}: ${filter.because}.` : `${label} keeps it.`);
    else {
      const edge = token.place >= to ? filter.end.kept : filter.start?.kept;
      const beside = edge ? ` The last to stay there is \u201c${shown(row, edge.id)}\u201d at place ${count(edge.place + 1)} with ${percent(edge.p)}.` : "";
      return [...said, `${label} drops it: ${filter.because}.${beside}`];
    }
  }
  said.push(`It is in the set, with ${percent(token.p_kept)}.`);
  if (token.arrival !== null && trace.race) said.push(`It arrived at ${token.arrival.toPrecision(4)}, which gives the score ${token.score?.toFixed(3)}; the winner's is ${trace.race.best.toFixed(3)}. Another seed may draw it: about one in ${count(Math.max(1, Math.round(1 / Math.max(token.p_kept, 1e-9))))} does.`);
  return said;
}

/** Shows the answer to what was asked; `forced` are traces of the row with each token forced that `find` names. */
export function showWhy(row, trace, asked, forced) {
  const into = at("why-says");
  if (!asked.trim()) return into.replaceChildren(h("p", {}, "Ask about a word of the row, or about an id such as #42."));
  if (!forced.length) return into.replaceChildren(h("p", {}, `No single token of this vocabulary is \u201c${asked}\u201d. A word may be several tokens; ask for its beginning, or for an id from 0 to ${row.logits.length - 1}.`));
  into.replaceChildren(...forced.map(({ winner }) => h("ol", {}, ...reasons(row, trace, winner).map((line) => h("li", {}, line)))));
}
