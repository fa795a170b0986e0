// What does the page show, and how does a link say so? The state is a plain object; the part after # of the address is its other form.
import { NEUTRAL, PARAMETERS } from "./parameters.js";

/** The most logits that a link carries. */
export const LINKED = 4096;
export const VIEWS = ["learn", "tune", "debug"];
const BY_NAME = new Map(PARAMETERS.map((parameter) => [parameter.name, parameter]));

/** What a visitor meets first. */
export function first() {
  return { view: "learn", row: 0, a: { ...NEUTRAL, temperature: 0.8, top_p: 0.9 }, b: null, why: "", target: "rust", logits: null };
}

function write(query, prefix, settings) {
  for (const [name, value] of Object.entries(settings)) if (value !== NEUTRAL[name]) query.set(prefix + name, String(value));
}

function read(query, prefix) {
  const settings = { ...NEUTRAL };
  for (const [key, text] of query) {
    const parameter = key.startsWith(prefix) ? BY_NAME.get(key.slice(prefix.length)) : undefined;
    if (!parameter) continue;
    const { name, kind } = parameter;
    if (kind === "number") {
      if (text !== "" && Number.isFinite(Number(text))) settings[name] = Number(text);
    } else if (kind === "flag") settings[name] = text === "true";
    else if (kind === "seed") {
      if (/^\d{1,20}$/.test(text) && BigInt(text) < 1n << 64n) settings[name] = BigInt(text) > 9007199254740991n ? text : Number(text);
    } else settings[name] = text;
  }
  return settings;
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
  if (state.logits && state.logits.length <= LINKED) query.set("logits", Array.from(state.logits, (z) => String(z)).join("_"));
  return `#${query}`;
}

/** Reads such an end of a link; what it does not say, or says wrongly, is as at first. */
export function fromHash(hash) {
  const state = first();
  if (hash.length < 2) return state;
  const query = new URLSearchParams(hash.slice(1));
  if (VIEWS.includes(query.get("view"))) state.view = query.get("view");
  state.a = read(query, "");
  if (query.get("compare")) state.b = read(query, "b.");
  state.why = query.get("why") ?? "";
  state.target = query.get("copy") ?? "rust";
  const row = query.get("row") ?? "0";
  state.row = row === "own" ? "own" : /^\d+$/.test(row) ? Number(row) : 0;
  if (query.get("logits")) {
    const numbers = query.get("logits").split("_").map(Number);
    if (numbers.length <= LINKED && numbers.every((z) => !Number.isNaN(z))) state.logits = Float32Array.from(numbers);
  }
  return state;
}
