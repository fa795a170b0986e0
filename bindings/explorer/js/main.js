// Who calls whom? Whenever the state changes, the core traces the row, every part of the page shows the trace, and the address says the state.
import { showAnswer, showFilters, sentence } from "./answer.js";
import { fromNpy, fromText } from "./bring.js";
import { showCompare } from "./compare.js";
import { showControls, makeControls } from "./controls.js";
import { TARGETS, showCopy } from "./copyas.js";
import { start, trace } from "./core.js";
import { at, h } from "./dom.js";
import { showDraws } from "./draws.js";
import { NEUTRAL, PARAMETERS } from "./parameters.js";
import { showPenalties } from "./penalties.js";
import { showRace } from "./race.js";
import { brought, recorded } from "./rows.js";
import { showSorted } from "./sorted.js";
import { LINKED, first, fromHash, toHash } from "./state.js";
import { showWhy } from "./whynot.js";

let state = first();
let rows = [];
let own = null;
let waiting = false;
let calm = 0;
let written = "";
const EDITS = ["repetition_penalty", "frequency_penalty", "presence_penalty", "dry_multiplier", "no_repeat_ngram", "banned_ids", "bad_words", "allowed_ids", "logit_bias", "min_tokens", "stop_ids"];

const row = () => (state.row === "own" && own ? own : (rows[state.row] ?? rows[0]));

/** Shows everything anew in the next frame, however often the state changes before it. */
function show() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    draw();
  });
}

function draw() {
  document.body.dataset.view = state.view;
  for (const button of document.querySelectorAll("#views button")) button.setAttribute("aria-pressed", String(button.dataset.view === state.view));
  showControls(state.a);
  at("row").value = String(state.row);
  at("note").textContent = row().note ?? `${row().logits.length} logits. Tokens go by their ids.`;
  written = toHash(state);
  if (location.hash !== written) history.replaceState(null, "", written);
  at("link-note").textContent = state.logits && state.logits.length > LINKED ? `The link says everything but the row itself, which has more than ${LINKED} logits.` : "";
  let traced;
  const began = performance.now();
  try {
    traced = trace(row(), state.a);
  } catch (error) {
    return fail(error);
  }
  at("took").textContent = `traced in ${(performance.now() - began).toFixed(0)} ms`;
  at("error").hidden = true;
  at("results").classList.remove("stale");
  showAnswer(row(), traced);
  showFilters(row(), traced);
  showSorted(row(), traced);
  showCopy(state.target, state.a);
  at("hidden-settings").textContent = unseen();
  // What costs more, or is read out, waits until the sliders rest.
  clearTimeout(calm);
  document.body.dataset.ready = "no";
  calm = setTimeout(() => rest(traced), 150);
}

/** Says which settings act that the first view has no control for. */
function unseen() {
  const basic = new Set(PARAMETERS.filter(({ group }) => group === "basic").map(({ name }) => name));
  const set = Object.entries(state.a).filter(([name, value]) => !basic.has(name) && value !== NEUTRAL[name]);
  return set.length ? `Besides, these are set, which the other views show: ${set.map(([name, value]) => `${name} ${value}`).join(", ")}.` : "";
}

function rest(traced) {
  try {
    const shownRow = row();
    at("live").textContent = sentence(shownRow, traced);
    if (state.view !== "learn") {
      const neutral = traced.edits.steps.length ? trace(shownRow, { ...state.a, ...Object.fromEntries(EDITS.map((name) => [name, NEUTRAL[name]])) }) : traced;
      showPenalties(shownRow, traced, neutral);
      const pinned = state.b && { ...state.b, seed: state.a.seed, draw: state.a.draw };
      showCompare(shownRow, traced, pinned && trace(shownRow, pinned), state.a, state.b);
      at("unpin").hidden = !state.b;
      showWhy(shownRow, traced, state.why, (id) => trace(shownRow, state.a, id));
    }
    showDraws(shownRow, traced, state.a);
    showRace(shownRow, traced);
    if (state.view === "debug") at("raw").textContent = JSON.stringify({ ...traced, what_if: undefined, curve: undefined, race: traced.race && { ...traced.race, field: undefined, bounds: undefined } }, null, 1);
  } catch (error) {
    fail(error);
  }
  document.body.dataset.ready = "yes";
}

/** Says what the core refused, and at which parameter. */
function fail(error) {
  clearTimeout(calm);
  const parameter = error.parameter ? `${error.parameter}: ` : "";
  at("error").textContent = `${parameter}${error.message}`;
  at("error").hidden = false;
  at("results").classList.add("stale");
  document.body.dataset.ready = "yes";
}

function take(logits, name) {
  own = brought(logits, name);
  state.row = "own";
  state.logits = logits;
  listRows();
  at("bring-says").textContent = `${logits.length} logits are in.`;
  show();
}

function bring(read, name) {
  try {
    take(read(), name);
  } catch (error) {
    at("bring-says").textContent = `Not read: ${error.message}`;
  }
}

function listRows() {
  const options = rows.map((one, index) => h("option", { value: index }, `${one.name}: ${one.prompt.replace(/\s+/g, " ").slice(0, 48)}`));
  at("row").replaceChildren(...options, ...(own ? [h("option", { value: "own" }, own.name)] : []));
}

function takeHash() {
  state = fromHash(location.hash);
  if (state.logits) own = brought(state.logits, "A row from the link");
  if (state.row === "own" ? !own : !rows[state.row]) state.row = 0;
  at("why").value = state.why;
  listRows();
  show();
}

async function copy(text, button) {
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select it and copy";
  }
  setTimeout(() => (button.textContent = said), 1500);
}

function theme(now) {
  document.documentElement.dataset.theme = now;
  at("theme").textContent = { auto: "Theme: system", dark: "Theme: dark", light: "Theme: light" }[now];
  try {
    localStorage.setItem("theme", now);
  } catch {
    // A page from a file may have no storage; the choice then lasts as long as the page.
  }
}

function listen() {
  makeControls((name, value) => {
    state.a = { ...state.a, [name]: value };
    show();
  });
  at("row").addEventListener("change", () => {
    state.row = at("row").value === "own" ? "own" : Number(at("row").value);
    if (state.row === "own") state.logits = own.logits;
    else state.logits = null;
    show();
  });
  for (const button of document.querySelectorAll("#views button")) button.addEventListener("click", () => ((state.view = button.dataset.view), show()));
  at("targets").append(...Object.entries(TARGETS).map(([target, name]) => h("button", { type: "button", "data-target": target, onclick: () => ((state.target = target), show()) }, name)));
  at("neutral").addEventListener("click", () => ((state.a = { ...NEUTRAL, seed: state.a.seed }), show()));
  at("pin").addEventListener("click", () => ((state.b = { ...state.a }), show()));
  at("unpin").addEventListener("click", () => ((state.b = null), show()));
  at("why").addEventListener("input", () => ((state.why = at("why").value), show()));
  at("copy-link").addEventListener("click", () => copy(location.href, at("copy-link")));
  at("copy-code").addEventListener("click", () => copy(at("code").textContent, at("copy-code")));
  at("take").addEventListener("click", () => bring(() => fromText(at("paste").value), "A row that was pasted"));
  at("file").addEventListener("change", async () => {
    const file = at("file").files[0];
    if (!file) return;
    const buffer = await file.arrayBuffer();
    bring(() => (file.name.endsWith(".npy") ? fromNpy(buffer) : fromText(new TextDecoder().decode(buffer))), file.name);
  });
  at("theme").addEventListener("click", () => theme({ auto: "dark", dark: "light", light: "auto" }[document.documentElement.dataset.theme]));
  addEventListener("hashchange", () => location.hash !== written && takeHash());
  addEventListener("resize", show);
}

/** Starts the page with the module and the recorded rows, both as bytes. */
export async function main(module, recording) {
  let kept = "auto";
  try {
    kept = localStorage.getItem("theme") ?? "auto";
  } catch {
    // As above.
  }
  theme(["auto", "dark", "light"].includes(kept) ? kept : "auto");
  at("version").textContent = await start(module);
  rows = recorded(recording);
  listen();
  takeHash();
  at("loading").hidden = true;
  at("page").hidden = false;
}
