// What came out? The token, in a sentence and beside the likeliest others; and what each filter did.
import { at, count, h, head, percent } from "./dom.js";
import { FILTERS } from "./parameters.js";
import { shown } from "./rows.js";

/** Says the answer in one sentence. */
export function sentence(row, trace) {
  if (!trace.winner) return "No token may be drawn: every logit is at minus infinity.";
  const { id, p, p_kept, place } = trace.winner;
  const kept = trace.kept.end - trace.kept.first;
  const drawn = kept === 1 ? `It is the only one left of ${count(trace.candidates)} tokens: any seed gives it` : `Seed ${trace.seed} draws it from ${count(kept)} of ${count(trace.candidates)} tokens`;
  const how = trace.temperature.in_use === 0 ? "Greedy: the best token" : drawn;
  return `\u201c${shown(row, id)}\u201d is the next token. ${how}; place ${count((place ?? 0) + 1)} of the row, ${percent(p)} before the filters, ${percent(p_kept)} after.`;
}

/** Shows the token, its text in context, and the bars of the likeliest. */
export function showAnswer(row, trace) {
  const context = at("context");
  context.replaceChildren(
    h("span", { class: "prompt" }, row.prompt ? `${row.prompt}${row.chat ? "\n" : ""}` : `${row.name}: `),
    row.said,
    trace.winner ? h("mark", { id: "winner", "data-id": trace.winner.id }, row.texts?.[trace.winner.id] || shown(row, trace.winner.id)) : "",
  );
  context.scrollTop = context.scrollHeight;
  at("sentence").textContent = sentence(row, trace);
  const kept = `${count(trace.kept.end - trace.kept.first)} tokens kept`;
  at("glance").replaceChildren(h("b", {}, trace.winner ? shown(row, trace.winner.id) : "no token"), ` ${trace.winner ? percent(trace.winner.p_kept) : ""}, ${kept}`);
  const places = trace.tokens.slice(0, 14);
  const top = Math.max(...places.map((token) => Math.max(token.p, token.p_kept)), 1e-12);
  const inside = (token) => token.place >= trace.kept.first && token.place < trace.kept.end;
  const bar = (token) =>
    h("tr", { class: token.id === trace.winner?.id ? "won" : inside(token) ? "" : "gone" },
      h("th", { scope: "row", class: "word" }, shown(row, token.id)),
      h("td", { class: "figure" }, token.logit?.toFixed(2) ?? "-\u221e"),
      h("td", { class: "track", "aria-hidden": "true" }, h("i", { class: "before", style: `width:${(100 * token.p) / top}%` }), h("i", { class: "after", style: `width:${(100 * token.p_kept) / top}%` })),
      h("td", { class: "figure" }, percent(token.p)),
      h("td", { class: "figure" }, token.id === trace.winner?.id || inside(token) ? percent(token.p_kept) : "out"));
  const others = trace.winner && trace.winner.place !== null && trace.winner.place >= places.length ? [bar(trace.winner)] : [];
  at("bars").replaceChildren(
    h("caption", { class: "unseen" }, "The likeliest tokens, before and after the filters"),
    head("token", "logit", "!before and after, as bars", "before", "after"),
    h("tbody", {}, ...places.map(bar), ...others));
}

/** Says what each filter did. */
export function showFilters(row, trace) {
  const side = (side) => `\u201c${shown(row, side.id)}\u201d (place ${count(side.place + 1)}, ${percent(side.p)}, sum ${percent(side.cumulative)})`;
  const told = trace.filters.map((filter, index) =>
    h("li", { class: `c${index % 6}` },
      h("strong", {}, `${FILTERS[filter.name]?.[0] ?? filter.name} ${Number(filter.value.toFixed(4))}`), ` ${FILTERS[filter.name]?.[1] ?? ""} `,
      h("span", { class: "because" }, `Here: ${filter.because}. ${count(filter.kept[1] - filter.kept[0])} of ${count(filter.given[1] - filter.given[0])} stayed.`),
      filter.end.dropped ? h("span", { class: "edge" }, ` Last in: ${side(filter.end.kept)}. First out: ${side(filter.end.dropped)}.`) : ""));
  at("filters").replaceChildren(...(told.length ? told : [h("li", {}, "No filter is on: the whole row may be drawn.")]));
}
