// What came out? The token, in a sentence and beside the likeliest others; and what each filter did.
import { at, count, h, head, percent, write } from "./dom.js";
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

/** How many of the likeliest tokens have a bar. */
const BARS = 14;

/** Makes a bar of the table; returns its element and what shows a token in it. A bar stays, as a row of a table is slow to make. */
function makeBar() {
  const [word, logit, before, after] = [h("th", { scope: "row", class: "word" }), ...[0, 0, 0].map(() => h("td", { class: "figure" }))];
  const [p, kept] = ["before", "after"].map((name) => h("i", { class: name }));
  const element = h("tr", {}, word, logit, h("td", { class: "track", "aria-hidden": "true" }, p, kept), before, after);
  return {
    element,
    show(row, token, trace, top) {
      const [won, inside] = [token.id === trace.winner?.id, token.place >= trace.kept.first && token.place < trace.kept.end];
      element.className = won ? "won" : inside ? "" : "gone";
      write(word, shown(row, token.id));
      write(logit, token.logit?.toFixed(2) ?? "-\u221e");
      p.style.width = `${(100 * token.p) / top}%`;
      kept.style.width = `${(100 * token.p_kept) / top}%`;
      write(before, percent(token.p));
      write(after, won || inside ? percent(token.p_kept) : "out");
    },
  };
}

/** The bars, made when the first answer is shown. @type {ReturnType<typeof makeBar>[]} */
let bars = [];
/** The row and the token whose text in context is shown. */
let told = {};

/** Shows the token, its text in context, and the bars of the likeliest. */
export function showAnswer(row, trace) {
  const context = at("context");
  if (told.row !== row || told.id !== trace.winner?.id) {
    told = { row, id: trace.winner?.id };
    context.replaceChildren(
      h("span", { class: "prompt" }, row.prompt ? `${row.prompt}${row.chat ? "\n" : ""}` : `${row.name}: `),
      row.said,
      trace.winner ? h("mark", { id: "winner", "data-id": trace.winner.id }, row.texts?.[trace.winner.id] || shown(row, trace.winner.id)) : "",
    );
    context.scrollTop = context.scrollHeight;
  }
  write(at("sentence"), sentence(row, trace));
  const kept = `${count(trace.kept.end - trace.kept.first)} tokens kept`;
  at("glance").replaceChildren(h("b", {}, trace.winner ? shown(row, trace.winner.id) : "no token"), ` ${trace.winner ? percent(trace.winner.p_kept) : ""}, ${kept}`);
  const tokens = trace.tokens.slice(0, BARS);
  const top = Math.max(...tokens.map((token) => Math.max(token.p, token.p_kept)), 1e-12);
  if (trace.winner && trace.winner.place !== null && trace.winner.place >= tokens.length) tokens.push(trace.winner);
  while (bars.length < tokens.length) bars.push(makeBar());
  tokens.forEach((token, index) => bars[index].show(row, token, trace, top));
  const body = at("bars").tBodies[0] ?? h("tbody");
  if (body.rows.length !== tokens.length) body.replaceChildren(...bars.slice(0, tokens.length).map(({ element }) => element));
  if (!body.isConnected) at("bars").append(h("caption", { class: "unseen" }, "The likeliest tokens, before and after the filters"), head("token", "logit", "!before and after, as bars", "before", "after"), body);
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
