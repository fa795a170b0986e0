// What did penalties, biases and bans change? Each edit with the tokens that it mattered most to, before and after.
import { at, count, h, head } from "./dom.js";
import { shown } from "./rows.js";

const NAMES = {
  repetition_penalty: "Repetition penalty", frequency_penalty: "Frequency penalty", presence_penalty: "Presence penalty", dry: "DRY",
  logit_bias: "Logit bias", allowed_ids: "Allowed ids", banned_ids: "Banned ids", bad_words: "Bad words",
  no_repeat_ngram: "No repeated n-gram", min_tokens: "Minimum length", mask: "Grammar mask",
};

/** Shows the edits of a trace; `neutral` is the trace without them, for the winner that would have been. */
export function showPenalties(row, trace, neutral) {
  const { edits } = trace;
  if (!edits.steps.length) return at("edits").replaceChildren(h("p", {}, "Nothing was edited: every logit is as the model gave it. Set a penalty, and the rows \u201cA loop\u201d and \u201cA list\u201d show what it does."));
  const change = ({ id, before, after }) => h("tr", {}, h("th", { scope: "row", class: "word" }, shown(row, id)), h("td", { class: "figure" }, before.toFixed(3)), h("td", { class: "figure" }, after === null ? "banned" : after.toFixed(3)), h("td", { class: "figure" }, after === null ? "" : (after - before).toFixed(3)));
  const told = edits.steps.map((step) => h("section", {}, h("h3", {}, `${NAMES[step.name] ?? step.name}: ${count(step.changed)} logits`),
    h("table", {}, head("token", "before", "after", "change"), h("tbody", {}, ...step.examples.map(change)))));
  const same = neutral.winner?.id === trace.winner?.id;
  const outcome = same ? "The token is the same with and without them, at this seed." : `Without them this seed would have drawn \u201c${neutral.winner ? shown(row, neutral.winner.id) : "nothing"}\u201d.`;
  at("edits").replaceChildren(h("p", {}, `${count(edits.changed)} logits differ from how they came, ${count(edits.banned)} are banned. ${outcome}`), ...told);
}
