// Who calls whom? Whenever the state changes, the core traces the row and every part of the page shows the trace; once the sliders rest, what is
// slower follows, and the address says the state.
import { showAnswer, showFilters, sentence } from "./answer.js";
import { toNpy } from "./bring.js";
import { showCompare } from "./compare.js";
import { controlOf, makeControls, mark, showControls } from "./controls.js";
import { TARGETS, showCopy } from "./copyas.js";
import { draws, part, start, trace } from "./core.js";
import { at, count, h, write } from "./dom.js";
import { DRAWS, showDraws } from "./draws.js";
import { SAVED } from "./owncode.js";
import { served } from "./model.js";
import { listenDrops, makeBringer } from "./own.js";
import { branched, listenPanel, showBranches, showInstead, showText } from "./panel.js";
import { NEUTRAL, PARAMETERS, adopt, withoutEdits } from "./parameters.js";
import { showPenalties } from "./penalties.js";
import { showRace } from "./race.js";
import { brought, find, recorded } from "./rows.js";
import { showSorted } from "./sorted.js";
import { LINKED, first, fromHash, toHash } from "./state.js";
import { listenStory } from "./story.js";
import * as text from "./text.js";
import { showWhy } from "./whynot.js";

let state = first();
let rows = [];
/** The row that was brought, the one to compare with it, and the fields through which they came. */
let [own, second] = [null, null];
let bringers;
let waiting = false;
let calm = 0;
let written = "";
/** How often something was changed: an answer to an older state is not shown in full. */
let turn = 0;
let tracing = false;
/** The settings whose answer the page shows; none while those of now are refused. */
let acting = null;
/** Whether any answer stands on the page. */
let answered = false;
/** The recorded row that the story is told over: after "Hello, my name is". */
const STORY_ROW = 11;

const row = () => (state.row === "own" && own) || (state.row === "model" && text.held(state.step)) || (rows[state.row] ?? rows[0]);
/** The settings that hold for that row. */
const settings = () => (state.row === "model" ? text.settled(state.a, state.step) : state.a);
/** Whether the row of the model that is to be shown has yet to come. */
const isAwaited = () => state.row === "model" && !text.held(state.step);

/** Shows everything anew in the next frame, however often the state changes before it. */
function show() {
  turn += 1;
  document.body.dataset.ready = "no";
  clearTimeout(calm);
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    showState();
    answer();
  });
}

/** Shows what needs no trace. */
function showState() {
  document.body.dataset.view = state.view;
  for (const button of document.querySelectorAll("#views button")) button.setAttribute("aria-pressed", String(button.dataset.view === state.view));
  showControls(state.a);
  at("row").value = String(state.row);
  write(at("note"), row().note ?? `${count(row().logits.length)} logits. Tokens go by their ids.`);
  write(at("hidden-settings"), unseen());
  if (served) showText(state, false);
  showNote();
}

/** Says what a link could not say, or said in vain. */
function showNote() {
  write(at("link-note"), [
    state.other,
    state.refused.length ? `The link says what cannot be, which is left out: ${state.refused.join(", ")}.` : "",
    [state.own, state.second].some((row) => row?.logits.length > LINKED) ? `The link says everything but rows of more than ${LINKED} logits.` : "",
  ].filter(Boolean).join(" "));
}

/** Asks for the newest state's trace, one at a time: while one is made, however many states may pass. */
async function answer() {
  if (tracing) return;
  tracing = true;
  for (let done = -1; done !== turn; ) {
    done = turn;
    const [began, shownRow, held] = [performance.now(), row(), settings()];
    let [traced, refused] = [undefined, undefined];
    try {
      traced = await trace(shownRow, held, { brief: true });
    } catch (error) {
      refused = error;
    }
    try {
      if (traced) showAll(shownRow, traced, held, began);
      else await fail(refused, shownRow, held);
    } catch (error) {
      say(error.message);
    }
  }
  tracing = false;
  // What costs more, or is read out, waits until the sliders rest.
  clearTimeout(calm);
  calm = setTimeout(rest, 150, turn);
}

function showAll(shownRow, traced, settings, began) {
  // First, as it reads a width: the browser lays the page out for that, unless nothing has been written since.
  showSorted(shownRow, traced);
  at("took").textContent = `traced in ${(performance.now() - began).toFixed(0)} ms`;
  at("error").hidden = true;
  mark(null);
  at("results").classList.toggle("stale", isAwaited());
  answered = true;
  acting = settings;
  showAnswer(shownRow, traced);
  showFilters(shownRow, traced);
  showCopy(state.target, settings, shownRow, traced.winner);
  if (served) showInstead(state, shownRow, traced, take);
}

/** Says which settings act that the first view has no control for. */
function unseen() {
  const basic = new Set(PARAMETERS.filter(({ group }) => group === "basic").map(({ name }) => name));
  const set = Object.entries(state.a).filter(([name, value]) => !basic.has(name) && value !== NEUTRAL[name]);
  return set.length ? `Besides, these are set, which the other views show: ${set.map(([name, value]) => `${name} ${value}`).join(", ")}.` : "";
}

/** Lets the address say the state. */
function writeAddress() {
  try {
    // An address that somebody else has changed is about to be read.
    if (location.hash === written) {
      history.replaceState(null, "", toHash(state));
      written = location.hash;
    }
  } catch {
    // A browser may refuse many changes in a short time; "Copy link" has the state all the same.
  }
}

/** Lets the model write what the state says; returns whether the state was shown anew, or has passed. */
async function writeText(passed) {
  if (!served || !state.text || !acting) return false;
  const shownRow = row();
  let reason = "";
  try {
    await text.write(state.text, state.a, passed, () => showText(state, true));
    if (!passed()) state.step = Math.max(0, Math.min(state.step, text.written().length - 1));
    if (!passed() && state.row === "model") await text.hold(state.step);
  } catch (error) {
    reason = error.message;
  }
  if (passed()) return true;
  const { check } = state.text;
  const whole = text.written().length === state.text.length || text.ended() !== "";
  if (whole && check !== undefined && check !== text.check() && state.isLinked) state.other = "The text is not that of the link: this machine computes other logits, or the settings were changed.";
  if (whole) state.text = { ...state.text, check: text.check() };
  state.isLinked = false;
  showText(state, false);
  showBranches(state, takeBranch);
  showNote();
  if (reason) at("model-status").textContent = reason;
  listRows();
  writeAddress();
  if (row() === shownRow && JSON.stringify(settings()) === JSON.stringify(acting)) return false;
  show();
  return true;
}

/** Shows what is slower than a slider, unless the state of that turn has gone; and writes the address, which browsers do not let every move do. */
async function rest(mine) {
  const passed = () => mine !== turn;
  writeAddress();
  if (await writeText(passed)) return;
  try {
    const [shownRow, settings] = [row(), acting];
    if (settings) {
      const traced = await trace(shownRow, settings);
      if (passed()) return;
      at("live").textContent = sentence(shownRow, traced);
      // The text may have been written since, with another token at this place.
      if (served) showInstead(state, shownRow, traced, take);
      if (state.view !== "learn") {
        const brief = { brief: true };
        const neutral = traced.edits.steps.length ? await trace(shownRow, withoutEdits(settings), brief) : traced;
        const other = beside(shownRow, settings);
        const parted = other && (await part([shownRow, settings], [other.row, other.settings]));
        const forced = [];
        for (const id of state.why.trim() ? find(shownRow, state.why) : []) forced.push(await trace(shownRow, settings, { forced: id, brief: true }));
        if (passed()) return;
        showPenalties(shownRow, traced, neutral);
        showCompare({ row: shownRow, settings }, other, parted);
        at("unpin").hidden = !state.b;
        at("unsecond").hidden = !state.second;
        showWhy(shownRow, traced, state.why, forced);
      }
      const drawn = traced.winner ? await draws(shownRow, settings, DRAWS, passed) : [];
      if (passed()) return;
      showDraws(shownRow, traced, settings, drawn);
      showRace(shownRow, traced);
      if (state.view === "debug") at("raw").textContent = raw(shownRow, traced);
    }
  } catch (error) {
    say(error.message);
  }
  if (!passed()) document.body.dataset.ready = "yes";
}

/** What the row and the settings of now are compared with, if anything: another row, other settings, or both, by the same seed. */
function beside(shownRow, settings) {
  if (!state.b && !state.second) return null;
  if (state.second && second?.beside !== shownRow) {
    const { logits, name, ids, output } = second;
    const before = ids.length + output.length ? { ids, output } : { ids: shownRow.ids, output: shownRow.output };
    second = { ...second, beside: shownRow, row: { ...brought(logits, name), ...before } };
  }
  return { row: state.second ? second.row : shownRow, settings: state.b ? { ...state.b, seed: settings.seed, draw: settings.draw } : settings };
}

/** The trace as text, without its long lists, each token with its text. */
function raw(shownRow, traced) {
  const told = { ...traced, what_if: undefined, curve: undefined, race: traced.race && { ...traced.race, field: undefined, bounds: undefined } };
  const named = (name, one) => (shownRow.texts && typeof one?.id === "number" && !("text" in one) ? { id: one.id, text: shownRow.texts[one.id], ...one } : one);
  return JSON.stringify(told, named, 1);
}

function say(words) {
  at("error").textContent = words;
  at("error").hidden = false;
}

/** Says what the core refused, and marks the control; where nothing stands on the page yet, shows the row with neutral settings. */
async function fail(error, shownRow, settings) {
  const name = controlOf(error.parameter);
  acting = null;
  let told = error.message;
  if (!answered) {
    const without = { ...NEUTRAL, seed: settings.seed };
    showAll(shownRow, await trace(shownRow, without, { brief: true }), without, performance.now());
    told += ". Below stands the row with neutral settings.";
  }
  at("results").classList.toggle("stale", !acting);
  say(told);
  mark(name);
  showCopy(state.target, null);
}

/** Goes on from the chosen token with another in its place, or with one that is drawn. */
function take(id) {
  state.text = branched(state.text, state.step, id);
  state.row = "model";
  show();
}

function takeBranch({ plan, settings }) {
  [state.text, state.a, state.row] = [plan, settings, "model"];
  state.step = Math.min(state.step, plan.length - 1);
  show();
}

function takeRow(row) {
  own = row;
  state.row = "own";
  state.own = row;
  listRows();
  show();
}

function takeSecond(row) {
  second = row;
  state.second = row;
  show();
}

function listRows() {
  const options = rows.map((one, index) => h("option", { value: index }, one.name));
  at("row").replaceChildren(...options, ...(own ? [h("option", { value: "own" }, own.name)] : []), ...(text.held(state.step) ? [h("option", { value: "model" }, text.held(state.step).name)] : []));
  at("row").value = String(state.row);
}

function takeHash() {
  written = location.hash;
  state = fromHash(written);
  const linked = (row, bringer, name) => (bringer.show(row, name), brought(row.logits, name, row.ids, row.output));
  if (state.own) own = linked(state.own, bringers[0], "A row from the link");
  if (state.second) second = linked(state.second, bringers[1], "The second row of the link");
  if (state.text && state.text.model !== served?.digest) {
    const has = served ? `this page has ${served.name}, ${served.digest}` : "this page has none: gumball explore --model serves it with one";
    state.other = `The link is about a text by the model whose file has the digest ${state.text.model}; ${has}. So the text is left out.`;
    state.text = null;
  }
  state.isLinked = state.text !== null;
  if (state.row === "own" ? !own : state.row === "model" ? !state.text : !rows[state.row]) state.row = 0;
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
  makeControls((name) => state.a[name], (name, value) => {
    state.a = { ...state.a, [name]: value };
    show();
  });
  at("row").addEventListener("change", () => {
    state.row = ["own", "model"].includes(at("row").value) ? at("row").value : Number(at("row").value);
    state.own = state.row === "own" ? own : null;
    show();
  });
  for (const button of document.querySelectorAll("#views button")) button.addEventListener("click", () => ((state.view = button.dataset.view), show()));
  at("targets").append(...Object.entries(TARGETS).map(([target, name]) => h("button", { type: "button", "data-target": target, onclick: () => ((state.target = target), show()) }, name)));
  at("neutral").addEventListener("click", () => ((state.a = { ...NEUTRAL, seed: state.a.seed }), show()));
  at("pin").addEventListener("click", () => ((state.b = { ...state.a }), show()));
  at("unpin").addEventListener("click", () => ((state.b = null), show()));
  at("unsecond").addEventListener("click", () => ((state.second = null), show()));
  at("why").addEventListener("input", () => ((state.why = at("why").value), show()));
  at("copy-link").addEventListener("click", () => copy(location.href.split("#")[0] + toHash(state), at("copy-link")));
  at("copy-code").addEventListener("click", () => copy(at("code").textContent, at("copy-code")));
  at("save-row").addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([toNpy(row())], { type: "application/octet-stream" }));
    h("a", { href: address, download: SAVED }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  });
  bringers = [makeBringer(at("bring"), "", takeRow), makeBringer(at("second"), "second-", takeSecond)];
  listenDrops(...bringers, () => state.view === "learn" && ((state.view = "tune"), show()));
  at("theme").addEventListener("click", () => theme({ auto: "dark", dark: "light", light: "auto" }[document.documentElement.dataset.theme]));
  listenStory(() => rows[STORY_ROW]);
  if (served) listenPanel({
    begin: (plan) => ([state.text, state.row, state.step, state.other] = [plan, "model", plan.length - 1, ""], show()),
    go(more) {
      const length = text.written().length + more;
      [state.text, state.row, state.step] = [{ ...state.text, length }, "model", length - 1];
      show();
    },
    stop: () => ((state.text = { ...state.text, length: Math.max(1, text.written().length) }), show()),
    choose: (step) => ([state.row, state.step] = ["model", step], show()),
    take,
    open: (link) => (location.hash = link.slice(link.indexOf("#") + 1)),
  });
  addEventListener("hashchange", () => location.hash !== written && takeHash());
  addEventListener("resize", show);
}

/** Starts the page with the worker's program, the module and the recorded rows, as bytes. */
export async function main(program, module, recording) {
  let kept = "auto";
  try {
    kept = localStorage.getItem("theme") ?? "auto";
  } catch {
    // As above.
  }
  theme(["auto", "dark", "light"].includes(kept) ? kept : "auto");
  const { version, parameters } = await start(program, module);
  adopt(parameters);
  at("version").textContent = version;
  rows = recorded(recording);
  if (served) await text.start();
  listen();
  takeHash();
  at("loading").hidden = true;
  at("page").hidden = false;
}
