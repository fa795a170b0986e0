// What does the page show, and how does a link say so? The state is a plain object; the part after # of the address is its other form.
import { FILTERS, NEUTRAL, PARAMETERS } from "./parameters.js";

/** The most logits that a link carries. */
export const LINKED = 4096;
export const VIEWS = ["learn", "tune", "debug"];

/** What a visitor meets first. `refused` is what a link said that cannot be; `own` and `second` are brought rows, the second to compare; `text` is the plan of the model's text,
 * `step` the token whose row is shown. */
export function first() {
  return { view: "learn", row: 0, a: { ...NEUTRAL, temperature: 0.8, top_p: 0.9 }, b: null, why: "", target: "rust", own: null, second: null, text: null, step: 0, refused: [] };
}

function write(query, prefix, settings) {
  for (const [name, value] of Object.entries(settings)) if (value !== NEUTRAL[name]) query.set(prefix + name, String(value));
}

/** Reads the value of a parameter; undefined if it can be none. */
function value({ name, kind, choices }, text) {
  if (kind === "number") return text !== "" && Number.isFinite(Number(text)) ? Number(text) : undefined;
  if (kind === "flag") return text === "true" || (text === "false" ? false : undefined);
  if (kind === "seed") return !/^\d{1,20}$/.test(text) || BigInt(text) >= 1n << 64n ? undefined : BigInt(text) > 9007199254740991n ? text : Number(text);
  if (kind !== "choice" || choices.includes(text)) return text;
  return name === "order" && text.split(",").every((one) => Object.hasOwn(FILTERS, one)) ? text : undefined;
}

function read(query, prefix, refused) {
  const settings = { ...NEUTRAL };
  for (const [key, text] of query) {
    const parameter = key.startsWith(prefix) ? PARAMETERS.find(({ name }) => prefix + name === key) : undefined;
    if (!parameter) continue;
    const given = value(parameter, text);
    if (given === undefined) refused.push(`${key} of ${JSON.stringify(text.slice(0, 40))}`);
    else settings[parameter.name] = given;
  }
  return settings;
}

/** The shortest text that is this f32. */
function shortest(z) {
  for (let digits = 6; digits < 9; digits++) if (Math.fround(Number(z.toPrecision(digits))) === z) return String(Number(z.toPrecision(digits)));
  return String(Number(z.toPrecision(9)));
}

/** Returns the state as the end of a link. A neutral parameter is left out. */
export function toHash(state) {
  const query = new URLSearchParams({ view: state.view, row: String(state.row) });
  write(query, "", state.a);
  if (state.b) {
    query.set("compare", "1");
    write(query, "b.", state.b);
  }
  if (state.why) query.set("why", state.why);
  if (state.target !== "rust") query.set("copy", state.target);
  for (const [name, row] of [["logits", state.own], ["second", state.second]]) {
    if (!row || row.logits.length > LINKED) continue;
    query.set(name, Array.from(row.logits, shortest).join("_"));
    for (const part of ["ids", "output"]) if (row[part]?.length) query.set(`${name}.${part}`, row[part].join("_"));
  }
  if (state.text) {
    const { model, prompt, forced, length, check } = state.text;
    query.set("model", model);
    query.set("prompt", prompt.join("_"));
    if (Object.keys(forced).length) query.set("forced", Object.entries(forced).map((pair) => pair.join("-")).join("_"));
    query.set("length", String(length));
    if (check) query.set("check", check);
    query.set("step", String(state.step));
  }
  return `#${query}`;
}

/** Reads a brought row: its logits, and the ids before it. */
function rowOf(query, name, refused) {
  const said = query.get(name);
  if (!said) return null;
  const words = said.split("_");
  if (words.length > LINKED || !words.every((word) => word === "NaN" || (word !== "" && !Number.isNaN(Number(word))))) return void refused.push(name) ?? null;
  const ids = ["ids", "output"].map((part) => {
    const list = query.get(`${name}.${part}`) ?? "";
    if (/^(\d{1,10}(_\d{1,10})*)?$/.test(list)) return list.split("_").filter(Boolean).map(Number);
    refused.push(`${name}.${part}`);
    return [];
  });
  return { logits: Float32Array.from(words, Number), ids: ids[0], output: ids[1] };
}

/** Reads the plan of a text. @returns {import("./text.js").Plan | null} */
function planOf(query, refused) {
  const said = { model: "[0-9a-f]{16}", prompt: "\\d{1,7}(_\\d{1,7})*", forced: "(\\d{1,7}-\\d{1,7}(_|$))*", length: "\\d{1,7}", check: "([0-9a-f]{8})?" };
  const given = Object.fromEntries(Object.keys(said).map((name) => [name, query.get(name) ?? ""]));
  const wrong = Object.keys(said).filter((name) => !new RegExp(`^${said[name]}$`).test(given[name]));
  refused.push(...wrong.map((name) => `${name} of ${JSON.stringify(given[name].slice(0, 40))}`));
  if (wrong.length) return null;
  const forced = Object.fromEntries(given.forced.split("_").filter(Boolean).map((pair) => pair.split("-").map(Number)));
  return { model: given.model, prompt: given.prompt.split("_").map(Number), forced, length: Number(given.length), check: given.check || undefined };
}

/** Reads such an end of a link; what it does not say is as at first, what cannot be is in `refused`. */
export function fromHash(hash) {
  const state = first();
  if (hash.length < 2) return state;
  const query = new URLSearchParams(hash.slice(1));
  if (VIEWS.includes(query.get("view"))) state.view = query.get("view");
  state.a = read(query, "", state.refused);
  if (query.get("compare")) state.b = read(query, "b.", state.refused);
  state.why = query.get("why") ?? "";
  state.target = query.get("copy") ?? "rust";
  const row = query.get("row") ?? "0";
  if (query.has("model")) state.text = planOf(query, state.refused);
  state.step = /^\d{1,7}$/.test(query.get("step") ?? "") ? Number(query.get("step")) : 0;
  state.row = row === "own" || row === "model" ? row : /^\d+$/.test(row) ? Number(row) : 0;
  state.own = rowOf(query, "logits", state.refused);
  state.second = rowOf(query, "second", state.refused);
  return state;
}
