// Which parameters are there, what are they for, and how do they go into the core? One table, from which the page makes its controls: what the page
// says better than the core, and behind it what the core has besides, most filters among it.

/**
 * @typedef {{name: string, label: string, group: string, off: any, min?: number, max?: number, step?: number, power?: number,
 *   kind?: "number" | "choice" | "flag" | "ids" | "pairs" | "seed", choices?: string[], help: string}} Parameter
 * `max` bounds the slider alone; the number beside it takes whatever the core takes. `power` makes a slider finer near 0.
 */

const n = (name, label, group, off, min, max, step, help, power = 1) => ({ name, label, group, off, min, max, step, power, help, kind: "number" });

/** @type {Parameter[]} */
export const PARAMETERS = [
  n("temperature", "Temperature", "basic", 1, 0, 3, 0.01, "Divides the logits: low makes the row steeper, high makes it flatter, 0 always takes the best."),
  n("top_p", "Top-p", "basic", 1, 0, 1, 0.005, "Keeps the shortest list of the likeliest tokens that holds this share of the probability. 1 is off."),
  n("min_p", "Min-p", "basic", 0, 0, 1, 0.001, "Drops whatever is less than this fraction as likely as the best token. 0 is off.", 2),
  n("top_k", "Top-k", "basic", 0, 0, 2000, 1, "Keeps the first k tokens, however likely they are. 0 is off.", 3),
  { name: "seed", label: "Seed", group: "basic", off: 7, kind: "seed", help: "The same seed draws the same token again, on every machine." },
  { name: "order", label: "Order of filters", group: "filters", off: "default", kind: "choice", choices: ["default", "joint", "min_p,top_k,top_p"], help: "default: each filter acts on what the former left. joint: all see the whole row. The third is vLLM's." },
  { name: "temperature_last", label: "Temperature last", group: "filters", off: false, kind: "flag", help: "Filters see the row at temperature 1, and only the draw is tempered, as in llama.cpp." },
  { name: "bias_first", label: "Bias first", group: "history", off: false, kind: "flag", help: "Biases are added before the penalties, as in vLLM and llama.cpp." },
  n("repetition_penalty", "Repetition penalty", "history", 1, 0.5, 2, 0.01, "Makes tokens that were seen less likely. 1 is off."),
  { name: "repetition_scope", label: "Repetition counts", group: "history", off: "both", kind: "choice", choices: ["both", "output", "prompt"], help: "Which tokens the repetition penalty counts as seen." },
  n("frequency_penalty", "Frequency penalty", "history", 0, -2, 2, 0.05, "Subtracted once per occurrence. 0 is off."),
  n("presence_penalty", "Presence penalty", "history", 0, -2, 2, 0.05, "Subtracted once if the token occurred. 0 is off."),
  { name: "penalty_scope", label: "Both count", group: "history", off: "output", kind: "choice", choices: ["output", "both", "prompt"], help: "Which tokens frequency and presence penalty count. Recorded prompts repeat themselves: try both." },
  n("penalty_window", "Penalty window", "history", 0, 0, 1024, 1, "These three look at the last tokens only. 0 is all.", 3),
  n("dry_multiplier", "DRY multiplier", "history", 0, 0, 5, 0.05, "Pushes down what would continue a passage that was said before. 0 is off."),
  n("dry_base", "DRY base", "history", 1.75, 1, 4, 0.05, "How fast that grows with the passage's length."),
  n("dry_allowed_length", "DRY allowed length", "history", 2, 1, 20, 1, "How long a passage may be repeated for nothing."),
  { name: "dry_breakers", label: "DRY breakers", group: "history", off: "", kind: "ids", help: "Ids that no passage reaches across." },
  n("dry_window", "DRY window", "history", 0, 0, 1024, 1, "DRY looks at the last tokens only. 0 is all.", 3),
  n("no_repeat_ngram", "No repeated n-gram", "history", 0, 0, 10, 1, "Bans what would repeat a sequence of n tokens. 0 is off."),
  { name: "no_repeat_ngram_scope", label: "N-grams of", group: "history", off: "both", kind: "choice", choices: ["both", "output", "prompt"], help: "Whose n-grams are not repeated." },
  n("no_repeat_ngram_window", "N-gram window", "history", 0, 0, 1024, 1, "Only n-grams of the last tokens. 0 is all.", 3),
  { name: "no_repeat_ngram_exempt_ids", label: "N-gram exempt ids", group: "history", off: "", kind: "ids", help: "Ids that may complete an n-gram again." },
  { name: "xtc_exempt_ids", label: "XTC exempt ids", group: "filters", off: "", kind: "ids", help: "XTC does nothing where it would drop one of these ids, such as the end of a text or a newline." },
  { name: "banned_ids", label: "Banned ids", group: "more", off: "", kind: "ids", help: "Ids that are never drawn, with blanks or commas between." },
  { name: "allowed_ids", label: "Allowed ids", group: "more", off: "", kind: "ids", help: "If given, all other ids are banned." },
  { name: "logit_bias", label: "Logit bias", group: "more", off: "", kind: "pairs", help: "Pairs such as 253:2.5 or 28:-Infinity, with blanks between." },
  { name: "bad_words", label: "Bad words", group: "more", off: "", kind: "ids", help: "Sequences of ids that are never completed, with semicolons between: 12 5; 9." },
  { name: "stop_ids", label: "Stop ids", group: "more", off: "", kind: "ids", help: "Ids that end the text: banned while the output is shorter than the minimum." },
  n("min_tokens", "Minimum length", "more", 0, 0, 64, 1, "How many tokens must be there before a stop id may be drawn."),
  { name: "section_open", label: "Section opens by", group: "more", off: "", kind: "ids", help: "Ids that open a section of the text, such as a model's reasoning; empty: it begins with the output." },
  { name: "section_close", label: "Section closes by", group: "more", off: "", kind: "ids", help: "Ids that close it. Empty: no section." },
  { name: "section_end", label: "Section's forced end", group: "more", off: "", kind: "ids", help: "Ids that are forced when its budget is used up; empty: those that close it." },
  n("section_budget", "Section's budget", "more", 4294967295, 0, 4294967295, 1, "How many tokens it may have before its end is forced.", 8),
  n("section_min", "Section's least length", "more", 0, 0, 64, 1, "How many tokens it must have before it may be closed."),
  n("loops_min_copies", "Loops from copies", "more", 0, 0, 64, 1, "How often the output repeats a period before it is a loop. 0: loops are not looked for."),
  n("loops_min_tokens", "Loops from tokens", "more", 256, 0, 4096, 1, "How many tokens a loop has at least.", 3),
  n("loops_min_period", "Loops: least period", "more", 1, 1, 128, 1, "In tokens."),
  n("loops_max_period", "Loops: largest period", "more", 128, 1, 128, 1, "In tokens."),
  n("loops_every", "Loops: looked for every", "more", 16, 1, 256, 1, "So many tokens."),
  { name: "loops_close", label: "A loop closes its section", group: "more", off: false, kind: "flag", help: "Forces the section's end." },
  { name: "loops_end", label: "A loop's forced end", group: "more", off: "", kind: "ids", help: "Ids that are forced where a loop is found." },
  n("dynamic_min", "Dynamic temperature from", "more", 0, 0, 3, 0.05, "With a range, a sure row gets the lower temperature and a flat one the upper. Both 0: off."),
  n("dynamic_max", "Dynamic temperature to", "more", 0, 0, 3, 0.05, "The upper end of that range."),
  n("dynamic_exponent", "Dynamic exponent", "more", 1, 0.1, 4, 0.1, "How the entropy bends it."),
  n("mirostat_tau", "Mirostat \u03c4", "more", 0, 0, 10, 0.1, "The surprise in bits that mirostat aims at. It stands alone, without filters. 0 is off."),
  n("mirostat_eta", "Mirostat \u03b7", "more", 0.1, 0, 1, 0.01, "How fast mirostat learns."),
  { name: "mirostat_mu", label: "Mirostat \u00b5", group: "more", off: "", kind: "ids", help: "The limit to start from, in bits; empty: twice \u03c4." },
  n("draw", "Draw index", "more", 0, 0, 999, 1, "Tells draws of one seed and position apart."),
];

/** What holds where nothing was set. */
export const NEUTRAL = Object.fromEntries(PARAMETERS.map(({ name, off }) => [name, off]));

/** Filters by their names: the name as people write it, and what each is for, for somebody who meets it for the first time. @type {Record<string, [string, string]>} */
export const FILTERS = {};

/** The page's name of a parameter of the core: `dry.base` is dry_base here, `dynamic_temperature.min` dynamic_min. */
export const ownName = (name) => name.replace("dynamic_temperature", "dynamic").replace(".", "_");

/** What acts before the temperature, by the core's table. */
const EDITS = new Set();
const chosen = (settings, isChosen) => ({ ...settings, ...Object.fromEntries(PARAMETERS.filter(({ name }) => !isChosen(name)).map(({ name }) => [name, NEUTRAL[name]])) });
/** Settings whose edits alone act; what a section or a loop forces, too, is left out. */
export const onlyEdits = (settings) => chosen(settings, (name) => EDITS.has(name) && !/^loops_|^section_budget$/.test(name));
/** Settings without their edits. */
export const withoutEdits = (settings) => chosen(settings, (name) => !EDITS.has(name));

/** Adds numbers and flags of the core that the page does not name itself. `table` is what the core's `parameters` returns. */
export function adopt(table) {
  for (const { name, stage } of table) if (stage === "edit") EDITS.add(ownName(name));
  for (const { filter } of table) if (filter) FILTERS[filter.name] = [filter.title, filter.purpose];
  const isKnown = (own) => PARAMETERS.some(({ name }) => name === own);
  const found = table.filter(({ name, holds, stage }) => ["number", "integer", "boolean"].includes(holds) && stage !== "logprobs" && !isKnown(ownName(name))).map(control);
  PARAMETERS.splice(PARAMETERS.findIndex(({ name }) => name === "order"), 0, ...found);
  for (const { name, off } of found) NEUTRAL[name] = off;
}

/** Describes the control of a parameter of the core. */
function control({ name, holds, about, neutral, stage, range, is_open, usual }) {
  const own = ownName(name);
  const filter = Object.keys(FILTERS).find((filter) => own === filter || own.startsWith(`${filter}_`)) ?? "";
  const words = own.slice(filter.length).replaceAll("_", " ");
  const label = filter ? FILTERS[filter][0] + words : words[0].toUpperCase() + words.slice(1);
  const group = stage === "filter" ? "filters" : stage === "edit" ? "history" : "more";
  // Names of rules, such as (F8), and the way ranges are written are for readers of docs/semantics.md.
  const help = about.replace(/ \([A-Z]\d+[a-z]?\)/g, "").replace(/\bin (\S+?)\.\.=([^\s;,]*[^\s;,.])/g, "from $1 to $2").replace(/\bin (\S+?)\.\.([^\s;,]*[^\s;,.])/g, "from $1 to below $2");
  const shared = { name: own, label, group, off: neutral, help };
  if (holds === "boolean") return { ...shared, kind: "flag" };
  // A slider goes up to ten times a usual value if the range goes on, in steps of a tenth of it or less, finer near 0 where it is small.
  const some = Math.abs(usual || neutral || 1);
  const max = range[1] <= 1 ? range[1] : 10 * some;
  const step = holds === "integer" ? 1 : Math.min(0.01, 10 ** Math.floor(Math.log10(some / 10)));
  const min = Math.max(range[0], -max) + (is_open ? step : 0);
  return { ...shared, kind: "number", min, max, step, power: some < max / 5 ? 3 : 1 };
}

/** Reads words with `read`, or refuses them by the parameter's name, as the core would. */
const read = (name, words, isOne, read, wanted) => words.map((word) => {
  if (isOne.test(word)) return read(word);
  throw Object.assign(new Error(`${name} has ${JSON.stringify(word.slice(0, 40))}, but takes ${wanted}`), { parameter: name });
});
const integers = (name, text) => read(name, text.split(/[\s,]+/).filter(Boolean), /^\d+$/, Number, "ids, such as 5 17");
const seed = (text) => (BigInt(text) > 9007199254740991n ? BigInt(text) : Number(text));
// The parameters whose names and values the core knows as they are.
const isPlain = ({ name, kind }) => ["number", "choice", "flag"].includes(kind) && !/^(dry|dynamic|mirostat|section|loops)_|^(draw|order)$/.test(name);

/** Returns the settings as the parameters that the core takes: only those that are not neutral, and the seed. */
export function toParams(settings) {
  const params = { seed: seed(String(settings.seed ?? NEUTRAL.seed)) };
  const is = (name) => settings[name] !== undefined && settings[name] !== NEUTRAL[name];
  for (const { name } of PARAMETERS.filter(isPlain)) if (is(name)) params[name] = settings[name];
  if (is("order")) params.order = settings.order.includes(",") ? settings.order.split(",") : settings.order;
  for (const name of ["banned_ids", "allowed_ids", "stop_ids", "xtc_exempt_ids", "no_repeat_ngram_exempt_ids"]) if (is(name)) params[name] = integers(name, settings[name]);
  if (is("logit_bias")) params.logit_bias = read("logit_bias", settings.logit_bias.split(/[\s,]+/).filter(Boolean), /^\d+:[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+|Infinity)$/i, (pair) => pair.split(":").map(Number), "pairs of an id and a bias, such as 253:2.5");
  const value = (name) => settings[name] ?? NEUTRAL[name];
  if (is("dry_multiplier")) params.dry = { multiplier: value("dry_multiplier"), base: value("dry_base"), allowed_length: value("dry_allowed_length"), ...(is("dry_breakers") && { breakers: integers("dry_breakers", settings.dry_breakers) }), ...(is("dry_window") && { window: value("dry_window") }) };
  if (is("section_close")) params.section = { close: integers("section_close", settings.section_close), ...(is("section_open") && { open: integers("section_open", settings.section_open) }), ...(is("section_end") && { end: integers("section_end", settings.section_end) }), ...(is("section_budget") && { budget: value("section_budget") }), ...(is("section_min") && { min: value("section_min") }) };
  if (is("loops_min_copies")) params.loops = { min_copies: value("loops_min_copies"), ...Object.fromEntries(["min_tokens", "min_period", "max_period", "every", "close"].filter((name) => is(`loops_${name}`)).map((name) => [name, value(`loops_${name}`)])), ...(is("loops_end") && { end: integers("loops_end", settings.loops_end) }) };
  if (is("dynamic_max") || is("dynamic_min")) params.dynamic_temperature = { min: value("dynamic_min"), max: value("dynamic_max"), exponent: value("dynamic_exponent") };
  if (is("mirostat_tau")) params.mirostat = { tau: value("mirostat_tau"), eta: value("mirostat_eta"), ...(is("mirostat_mu") && { mu: read("mirostat_mu", [settings.mirostat_mu.trim()], /^[+-]?(\d+\.?\d*|\.\d+)$/, Number, "a number of bits")[0] }) };
  if (is("bad_words")) params.bad_words = settings.bad_words.split(";").filter((words) => words.trim()).map((words) => integers("bad_words", words));
  return params;
}
