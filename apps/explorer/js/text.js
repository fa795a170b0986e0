// What does the model write under these settings, and which row is each token drawn from? The model gives rows and the core draws, one token
// after the other. A text follows from its plan and the settings, so that a link that holds both brings it back.
import { draw } from "./core.js";
import { allTexts, logitsAfter, served } from "./model.js";
import { NEUTRAL } from "./parameters.js";

/**
 * @typedef {{model: string, prompt: number[], forced: Record<number, number>, length: number, check?: string}} Plan
 * `model` is its digest, `forced` has an id for each place where none is drawn, `length` is how many tokens to write at most, and `check` is
 * that of the text.
 * @typedef {{id: number, forced: boolean, mu: number | undefined}} Step `mu` is mirostat's limit or the mean of adaptive-p before it
 */

/** How much memory rows may take; those that were used last stay. */
const ROWS_BYTES = 1 << 27;

/** @type {string[]} */
let texts = [];
/** @type {Step[]} */
let steps = [];
/** @type {Plan | null} */
let plan = null;
/** What the steps were drawn by. */
let drawnBy = "";
/** Mirostat's limit, or the mean of adaptive-p, after the last step. */
let mu;
/** Whether no token may be drawn after the last step. */
let stuck = false;
const rows = new Map();

/** Asks the server for the text of each token. */
export const start = async () => (texts = await allTexts());
/** The tokens so far. */
export const written = () => steps;
/** The text of some tokens. */
export const textOf = (ids) => ids.map((id) => texts[id] ?? `#${id}`).join("");
/** Tokens as `shown` of rows.js takes them. */
export const vocabulary = () => ({ texts });

const before = (place) => steps.slice(0, place).map(({ id }) => id);
const named = (output) => JSON.stringify([plan.prompt, output]);

/** The row that a token of the text is drawn from, if it is at hand. @returns {import("./rows.js").Row | undefined} */
export const held = (place) => (place < steps.length ? rows.get(named(before(place))) : undefined);

/** The row after some tokens: one that is at hand, or the model's. */
async function rowAfter(output) {
  const name = named(output);
  const prompt = plan.prompt;
  let row = rows.get(name);
  if (!row) {
    const logits = await logitsAfter(prompt, output);
    const place = output.length + 1;
    row = { name: `Token ${place} of the text by ${served.name}`, note: `What the model says before token ${place} of its text.`, prompt: textOf(prompt), said: textOf(output), ids: prompt, output, logits, dtype: "float32", texts };
  }
  rows.delete(name);
  rows.set(name, row);
  for (const oldest of rows.keys()) {
    if (rows.size * row.logits.byteLength <= ROWS_BYTES) break;
    rows.delete(oldest);
  }
  return row;
}

/** Brings the row to hand that a token is drawn from. */
export const hold = async (place) => void (place < steps.length && (await rowAfter(before(place))));

/** The settings by which the token at a place is drawn: ids that end a text wait for the least length, mirostat has its limit and adaptive-p its mean. */
export function settled(settings, place) {
  const limit = place < steps.length ? steps[place].mu : mu;
  const ends = settings.min_tokens > 0 ? { stop_ids: [...new Set([...(settings.stop_ids.match(/\d+/g) ?? []), ...served.ends.map(String)])].join(" ") } : {};
  const state = limit === undefined ? {} : settings.mirostat_tau > NEUTRAL.mirostat_tau ? { mirostat_mu: String(limit) } : settings.adaptive_target >= 0 ? { mu: limit } : {};
  return { ...settings, ...ends, ...state };
}

/** Why the text goes on no further than its last token; empty if it does. */
export function ended() {
  if (stuck) return "No token may be drawn here.";
  const last = steps.at(-1);
  if (last && served.ends.includes(last.id)) return `The model ends its text, by ${textOf([last.id])}.`;
  return plan && plan.prompt.length + steps.length >= served.most_tokens ? `The text has ${served.most_tokens} tokens with its prompt, and no more are read.` : "";
}

/** By which a link knows the text: FNV-1a of its ids. */
export function check() {
  const hash = steps.reduce((hash, { id }) => Math.imul(hash ^ id, 0x01000193), 0x811c9dc5);
  return (hash >>> 0).toString(16).padStart(8, "0");
}

/** Writes what a plan and settings come to; what was written stays as far as it is the same. `grown` is called at each token; once `passed`
 * returns true, it ends. @param {Plan} asked */
export async function write(asked, settings, passed, grown) {
  const by = JSON.stringify([asked.prompt, settings]);
  const holds = ({ id, forced }, place) => place < asked.length && asked.forced[place] === (forced ? id : undefined);
  const differs = by === drawnBy ? steps.findIndex((step, place) => !holds(step, place)) : 0;
  if (differs >= 0) {
    mu = steps[differs]?.mu;
    steps = steps.slice(0, differs);
  }
  if (steps.length === 0) mu = undefined;
  [plan, drawnBy, stuck] = [asked, by, false];
  grown();
  while (steps.length < plan.length && !ended()) {
    const row = await rowAfter(before(steps.length));
    if (passed()) return;
    const forced = plan.forced[steps.length];
    const drawn = forced === undefined ? await draw(row, settled(settings, steps.length)) : { id: forced, mu };
    if (passed()) return;
    if (drawn.id === undefined) stuck = true;
    else steps.push({ id: drawn.id, forced: forced !== undefined, mu });
    mu = drawn.mu;
    grown();
  }
}
