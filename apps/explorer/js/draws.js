// Do a thousand draws follow the law? Each token's share among them beside its probability in the kept set.
import { at, count, h, head, percent } from "./dom.js";
import { shown } from "./rows.js";

export const DRAWS = 1000;

/** Counts those of the trace's list among the drawn ids; all others are one line. */
function counted(row, trace, drawn) {
  const times = new Map();
  for (const id of drawn) times.set(id, (times.get(id) ?? 0) + 1);
  const lines = trace.tokens.filter((token) => token.p_kept > 0).slice(0, 16).map((token) => ({ name: shown(row, token.id), law: token.p_kept, times: times.get(token.id) ?? 0 }));
  const rest = { name: "all others", law: Math.max(0, 1 - lines.reduce((sum, line) => sum + line.law, 0)), times: DRAWS - lines.reduce((sum, line) => sum + line.times, 0) };
  return rest.times > 0 || rest.law > 1e-6 ? [...lines, rest] : lines;
}

/** Shows drawn ids beside the law. */
export function showDraws(row, trace, settings, drawn) {
  if (!trace.winner) return at("draws").replaceChildren(h("p", {}, "There is no token to draw."));
  const lines = counted(row, trace, drawn);
  const top = Math.max(...lines.map((line) => Math.max(line.law, line.times / DRAWS)));
  const xtc = settings.xtc_probability > 0 ? " XTC tosses its coin anew for each draw, so that the law of this one draw is not that of all." : "";
  const line = ({ name, law, times }) => {
    const spread = Math.sqrt(DRAWS * law * (1 - law));
    return h("tr", {}, h("th", { scope: "row", class: "word" }, name),
      h("td", { class: "track", "aria-hidden": "true" }, h("i", { class: "before", style: `width:${(100 * law) / top}%` }), h("i", { class: "after", style: `width:${(times / DRAWS / top) * 100}%` })),
      h("td", { class: "figure" }, percent(law)), h("td", { class: "figure" }, count(times)), h("td", { class: "figure" }, spread > 0 ? ((times - DRAWS * law) / spread).toFixed(1) : "-"));
  };
  at("draws").replaceChildren(
    h("p", {}, `${count(DRAWS)} draws under the draw indices 0 to ${DRAWS - 1} of this seed. The last column is the difference in standard deviations: mostly between -2 and 2.${xtc}`),
    h("table", {}, head("token", "!law and draws, as bars", "law", "drawn", "\u0394/\u03c3"), h("tbody", {}, ...lines.map(line))));
}
