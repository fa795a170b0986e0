// How does one let the model write, ask why it wrote a token, and take another? A prompt, the text as tokens, and its branches.
import { at, count, h, percent } from "./dom.js";
import { served, tokensOf } from "./model.js";
import { find, shown } from "./rows.js";
import { ended, held, textOf, vocabulary, written } from "./text.js";

/** How many tokens are written at first, and how many candidates are offered. */
const FIRST = 8;
const OFFERED = 8;

/** @typedef {{plan: import("./text.js").Plan, settings: Record<string, any>, ids: number[]}} Branch */
/** @type {Branch[]} */
let branches = [];
/** @type {Branch | undefined} */
let current;

const same = (one, other) => JSON.stringify([one.prompt, one.forced]) === JSON.stringify([other.prompt, other.forced]);
/** Whether somebody reads the text by the keyboard, so that the chosen token must stay in focus. */
const hasFocus = () => at("text").contains(document.activeElement);

/** Shows the text so far. @param {{text: import("./text.js").Plan, step: number, row: any, a: any}} state */
export function showText(state, isWriting) {
  const { text: plan, step, row } = state;
  const steps = written();
  at("model-text").hidden = !plan;
  if (!plan) return;
  at("prompt-text").textContent = textOf(plan.prompt);
  at("prompt-length").textContent = `The prompt as the model reads it, ${count(plan.prompt.length)} tokens`;
  const into = at("text");
  while (into.children.length > steps.length) into.lastElementChild.remove();
  const chosen = row === "model" ? Math.min(step, steps.length - 1) : -1;
  steps.forEach(({ id, forced }, place) => {
    let token = into.children[place];
    if (!token || token.dataset.id !== String(id)) {
      const made = h("span", { role: "option", class: "token", "data-id": id, "data-place": place }, textOf([id]).replace(/\n/g, "\u21b5\n"));
      if (token) token.replaceWith(made);
      else into.append(made);
      token = made;
    }
    token.classList.toggle("forced", forced);
    token.setAttribute("aria-label", `Token ${place + 1}: ${shown(vocabulary(), id)}${forced ? ", taken" : ""}`);
    token.setAttribute("aria-selected", String(place === chosen));
    token.tabIndex = place === Math.max(0, chosen) ? 0 : -1;
  });
  if (hasFocus() && chosen >= 0) into.children[chosen].focus();
  at("stop").hidden = !isWriting;
  const over = ended();
  for (const button of document.querySelectorAll("[data-go]")) button.disabled = over !== "";
  at("model-status").textContent = isWriting ? `The model writes: ${count(steps.length)} of ${count(plan.length)} tokens.` : `${count(steps.length)} tokens. ${over}`;
}

/** Keeps what the state writes as a branch, and shows all of them; the state's own is that which was chosen or begun last. */
export function showBranches({ text: plan, a }, chosen) {
  if (!plan) return;
  if (!current || !same(current.plan, plan)) {
    current = branches.find((branch) => same(branch.plan, plan) && JSON.stringify(branch.settings) === JSON.stringify(a));
    if (!current) branches.push((current = { plan, settings: a, ids: [] }));
  }
  Object.assign(current, { plan, settings: a, ids: written().map(({ id }) => id) });
  at("branches").hidden = branches.length < 2;
  at("branch-list").replaceChildren(...branches.map((branch) => {
    const { plan, ids, settings } = branch;
    const places = Object.keys(plan.forced).map((place) => Number(place) + 1);
    const taken = places.length ? `token ${places.join(", ")} taken` : "all drawn";
    const text = textOf(ids.slice(0, 40));
    return h("li", {}, h("button", { type: "button", class: "branch", "aria-current": String(branch === current), onclick: () => ((current = branch), chosen(branch)) }, `${text}${ids.length > 40 ? "\u2026" : ""}`), h("span", { class: "quiet" }, ` ${taken}, seed ${settings.seed}`));
  }));
}

/** Offers other tokens for the chosen place. */
export function showInstead(state, row, trace, take) {
  const step = state.row === "model" && row === held(state.step) ? written()[state.step] : undefined;
  at("instead").hidden = !step;
  if (!step) return;
  const name = (id) => `\u201c${shown(row, id)}\u201d`;
  const drawn = trace.winner ? `the seed draws ${name(trace.winner.id)} here` : "nothing could be drawn here";
  at("why-taken").textContent = step.forced ? `You took ${name(step.id)}; ${drawn}.` : `${name(step.id)} was drawn. Below stands why: the filters, the race, and why not another.`;
  const others = trace.tokens.filter(({ id }) => id !== step.id).slice(0, OFFERED);
  at("candidates").replaceChildren(
    ...(step.forced ? [h("button", { type: "button", id: "let-draw", onclick: () => take(undefined) }, "Let it be drawn again")] : []),
    ...others.map(({ id, p }) => h("button", { type: "button", "data-take": id, onclick: () => take(id) }, `${shown(row, id)} `, h("span", { class: "quiet" }, percent(p)))));
}

/** Returns the plan that has another token at a place, or one that is drawn if `id` is undefined; what was taken after it is forgotten. */
export function branched(plan, place, id) {
  const forced = Object.fromEntries(Object.entries(plan.forced).filter(([at]) => Number(at) < place));
  if (id !== undefined) forced[place] = id;
  return { ...plan, forced, length: Math.max(plan.length, place + FIRST), check: undefined };
}

/**
 * Lets the panel act. `begin` gets a new plan, `go` how many tokens more, `choose` a place, `take` an id for the chosen place, `open` a link.
 * @param {{begin(plan: import("./text.js").Plan): void, go(n: number): void, stop(): void, choose(place: number): void, take(id: number): void, open(link: string): void}} act
 */
export function listenPanel(act) {
  at("model").hidden = false;
  at("model-says").textContent = `${served.name}, ${count(served.vocab)} logits a row, up to ${count(served.most_tokens)} tokens. The model runs in gumball explore on this machine; each token is drawn here, by the settings of this page.`;
  at("chat").checked = served.chat;
  at("chat").disabled = !served.chat;
  at("begin-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const prompt = await tokensOf(at("prompt").value, at("chat").checked);
      act.begin({ model: served.digest, prompt, forced: {}, length: FIRST });
    } catch (error) {
      at("model-status").textContent = error.message;
    }
  });
  for (const button of document.querySelectorAll("[data-go]")) button.addEventListener("click", () => act.go(Number(button.dataset.go)));
  at("stop").addEventListener("click", act.stop);
  at("text").addEventListener("click", ({ target }) => target.dataset.place && act.choose(Number(target.dataset.place)));
  at("text").addEventListener("keydown", (event) => {
    const [place, last] = [Number(document.activeElement.dataset.place), written().length - 1];
    const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: last, Enter: place, " ": place }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = at("text").children[Math.min(last, Math.max(0, to))];
    next.focus();
    act.choose(Number(next.dataset.place));
  });
  at("other-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const [id] = find({ ...vocabulary(), logits: { length: served.vocab } }, at("other").value);
    if (id === undefined) at("model-status").textContent = `No single token is \u201c${at("other").value}\u201d. A word may be several tokens; take its beginning, or an id such as #42.`;
    else act.take(id);
  });
  at("link").addEventListener("change", () => {
    act.open(at("link").value);
    at("link").value = "";
  });
}
