// How are these settings said to other engines, and what do they do otherwise? What docs/semantics.md knows of them, as code.
import { python } from "./owncode.js";
import { toParams } from "./parameters.js";

/** Names of other engines; a parameter that is missing there, and that `translated` does not say otherwise, has no counterpart. */
const NAMES = {
  vllm: { temperature: "temperature", top_p: "top_p", top_k: "top_k", min_p: "min_p", seed: "seed", repetition_penalty: "repetition_penalty", frequency_penalty: "frequency_penalty", presence_penalty: "presence_penalty", min_tokens: "min_tokens", stop_ids: "stop_token_ids", allowed_ids: "allowed_token_ids" },
  sglang: { temperature: "temperature", top_p: "top_p", top_k: "top_k", min_p: "min_p", seed: "sampling_seed", repetition_penalty: "repetition_penalty", frequency_penalty: "frequency_penalty", presence_penalty: "presence_penalty", min_tokens: "min_new_tokens", stop_ids: "stop_token_ids" },
  transformers: { temperature: "temperature", top_p: "top_p", top_k: "top_k", min_p: "min_p", typical_p: "typical_p", epsilon_cutoff: "epsilon_cutoff", eta_cutoff: "eta_cutoff", top_h: "top_h", repetition_penalty: "repetition_penalty", no_repeat_ngram: "no_repeat_ngram_size", min_tokens: "min_new_tokens", stop_ids: "eos_token_id" },
  llama: { temperature: "--temp", top_p: "--top-p", top_k: "--top-k", min_p: "--min-p", seed: "--seed", typical_p: "--typical", top_n_sigma: "--top-nsigma", xtc_probability: "--xtc-probability", xtc_threshold: "--xtc-threshold", repetition_penalty: "--repeat-penalty", frequency_penalty: "--frequency-penalty", presence_penalty: "--presence-penalty" },
};
const TITLES = { vllm: "vLLM", sglang: "SGLang", transformers: "transformers", llama: "llama.cpp" };

/** Values that an engine refuses and this page does not: the least and the largest it takes. */
const LIMITS = {
  vllm: { temperature: [0, 2], frequency_penalty: [-2, 2], presence_penalty: [-2, 2] },
  sglang: { frequency_penalty: [-2, 2], presence_penalty: [-2, 2], repetition_penalty: [0, 2], seed: [0, 2n ** 63n - 1n] },
  transformers: {},
  llama: {},
};
/** How many tokens an engine writes unless it is told otherwise, where a larger least length is an error. */
const LENGTHS = { vllm: ["max_tokens", 16], sglang: ["max_new_tokens", 128], transformers: ["max_new_tokens", 20] };
/** llama.cpp looks back no further than it is told, and takes no "all". */
const LOOK_BACK = 65536;
/** What only acts beside another parameter, and what is told under the differences. */
const PENALTIES = ["repetition_penalty", "frequency_penalty", "presence_penalty"];
const BESIDE = { xtc_threshold: ["xtc_probability"], repetition_scope: ["repetition_penalty"], penalty_window: PENALTIES, ...Object.fromEntries(["scope", "window", "exempt_ids"].map((name) => [`no_repeat_ngram_${name}`, ["no_repeat_ngram"]])) };
const TOLD = new Set(["order", "repetition_scope", "penalty_scope", "temperature_last", "bias_first"]);

/** Parameters that are whole numbers; of all others transformers wants a number with a point. */
const WHOLE = new Set(["top_k", "no_repeat_ngram", "min_tokens", "seed"]);
const said = (name, value) => (typeof value === "number" && Number.isInteger(value) && Math.abs(value) < 1e16 && !WHOLE.has(name) ? value.toFixed(1) : python(value));

const quoted = (text) => `'${text.replace(/'/g, "'\\''")}'`;
const words = (row, ids) => ids.map((id) => row.texts?.[id] ?? "").join("");

/** Parameters for an engine: bans and single bad words are biases of -inf where it has nothing else for them. */
function translated(target, settings, row) {
  const given = { temperature: settings.temperature, ...toParams(settings) };
  for (const [name, others] of Object.entries(BESIDE)) if (!others.some((other) => other in given)) delete given[name];
  const bans = new Set([...(given.banned_ids ?? []), ...(given.bad_words ?? []).filter((ids) => ids.length === 1).flat()]);
  const phrases = (given.bad_words ?? []).filter((ids) => ids.length > 1);
  const biases = new Map(given.logit_bias ?? []);
  for (const [id, bias] of biases) if (bias === -Infinity) bans.add(id);
  for (const id of bans) biases.set(id, -Infinity);
  for (const name of ["banned_ids", "bad_words", "logit_bias"]) delete given[name];
  if (target === "vllm" || target === "sglang") {
    // Both refuse 0; the first token of any row holds more than a millionth.
    if (given.top_p === 0) given.top_p = 1e-6;
  }
  return { given, bans: [...bans], phrases, biases };
}

/** Returns the code for an engine, what cannot be said there, and what is done otherwise there. */
export function engineCode(target, settings, row) {
  const { given, bans, phrases, biases } = translated(target, settings, row);
  const names = NAMES[target];
  const greedy = given.temperature === 0;
  const missing = new Set(Object.keys(given).filter((name) => !(name in names) && !TOLD.has(name)));
  const pairs = Object.entries(given).filter(([name]) => name in names).map(([name, value]) => [names[name], value, name]);
  const [length, most] = LENGTHS[target] ?? [];
  if (length && given.min_tokens > most) pairs.push([length, given.min_tokens, "min_tokens"]);
  const text = {
    vllm() {
      if (biases.size) pairs.push(["logit_bias", biases]);
      if (phrases.length && row.texts) pairs.push(["bad_words", phrases.map((ids) => words(row, ids))]);
      else if (phrases.length) missing.add("bad_words of several ids");
      return `from vllm import SamplingParams\n\nparams = SamplingParams(${pairs.map(([name, value, own]) => `${name}=${said(own, value)}`).join(", ")})`;
    },
    sglang() {
      if (biases.size) pairs.push(["logit_bias", new Map([...biases].map(([id, bias]) => [String(id), bias]))]);
      if (phrases.length) missing.add("bad_words of several ids");
      return `sampling_params = {${pairs.map(([name, value, own]) => `"${name}": ${said(own, value)}`).join(", ")}}`;
    },
    llama() {
      const flags = pairs.map(([name, value]) => `${name} ${value}`);
      const flag = (name, value) => flags.push(`${name} ${value}`);
      if (given.dynamic_temperature && !greedy) {
        const { min, max, exponent } = given.dynamic_temperature;
        flags[pairs.findIndex(([name]) => name === "--temp")] = `--temp ${(min + max) / 2}`;
        flag("--dynatemp-range", (max - min) / 2);
        if (exponent !== 1) flag("--dynatemp-exp", exponent);
      }
      if (!("top_k" in given)) flag("--top-k", 0);
      if (!("top_p" in given)) flag("--top-p", 1);
      if (!("min_p" in given)) flag("--min-p", 0);
      if (PENALTIES.some((name) => name in given)) flag("--repeat-last-n", given.penalty_window ?? LOOK_BACK);
      if (given.dry) {
        const { multiplier, base, allowed_length, breakers = [], window = LOOK_BACK } = given.dry;
        flags.push(`--dry-multiplier ${multiplier}`, `--dry-base ${base}`, `--dry-allowed-length ${allowed_length}`, `--dry-penalty-last-n ${window}`);
        const known = breakers.map((id) => words(row, [id])).filter(Boolean);
        if (known.length < breakers.length) missing.add("dry.breakers without texts");
        for (const one of known.length ? known : ["none"]) flag("--dry-sequence-breaker", one === "none" ? one : quoted(one));
      }
      if (given.mirostat) {
        flags.push("--mirostat 2", `--mirostat-ent ${given.mirostat.tau}`, `--mirostat-lr ${given.mirostat.eta}`);
        if (given.mirostat.mu !== undefined) missing.add("mirostat.mu");
      }
      if (given.adaptive_target >= 0) flags.push("--samplers 'penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature;adaptive_p'", `--adaptive-target ${given.adaptive_target}`, `--adaptive-decay ${given.adaptive_decay ?? 0.9}`);
      for (const [id, bias] of biases) flag("--logit-bias", `${id}${bias < 0 ? "" : "+"}${bias === -Infinity ? "-inf" : bias}`);
      for (const name of ["penalty_window", "dry", "mirostat", "dynamic_temperature", "adaptive_target", "adaptive_decay"]) missing.delete(name);
      if (phrases.length) missing.add("bad_words of several ids");
      return `llama-cli -m model.gguf ${flags.join(" ")}`;
    },
    transformers() {
      missing.delete("seed");
      const filters = new Set(["temperature", "top_p", "top_k", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h"]);
      const shape = pairs.filter(([name]) => !greedy || !filters.has(name)).map(([name, value, own]) => `${name}=${said(own, value)}`);
      if (!("top_k" in given) && !greedy) shape.push("top_k=0");
      if (bans.length) shape.push(`suppress_tokens=${python(bans)}`);
      const finite = [...biases].filter(([, bias]) => bias !== -Infinity);
      if (finite.length) shape.push(`sequence_bias=[${finite.map(([id, bias]) => `[[${id}], ${said("logit_bias", bias)}]`).join(", ")}]`);
      if (phrases.length) shape.push(`bad_words_ids=${python(phrases)}`);
      if (given.allowed_ids) shape.push(`prefix_allowed_tokens_fn=lambda batch, ids: ${python(given.allowed_ids)}`);
      missing.delete("allowed_ids");
      return `import torch\n\ntorch.manual_seed(${given.seed})\nmodel.generate(**inputs, do_sample=${greedy ? "False" : "True"}${shape.map((one) => `, ${one}`).join("")})`;
    },
  }[target]();
  return { text, missing: [...missing], differences: differences(target, given, { biases, bans, phrases: row.texts ? phrases : [], greedy }) };
}

/** What an engine refuses of these settings. */
export function refusals(target, settings) {
  const given = { temperature: settings.temperature, ...toParams(settings) };
  return Object.entries(LIMITS[target]).filter(([name, [least, most]]) => given[name] < least || given[name] > most).map(([name, [least, most]]) => `${TITLES[target]} refuses this ${name}: it takes ${least} to ${most}.`);
}

function differences(target, params, { biases, bans, phrases, greedy }) {
  const has = (name) => params[name] !== undefined;
  const lines = ["The rule is the same as far as this page says; the drawn token is another one, since that engine has other random numbers."];
  const say = (when, text) => when && lines.push(text);
  const penalties = PENALTIES.some(has);
  const counts = has("frequency_penalty") || has("presence_penalty");
  const edited = [...biases.values()].some((bias) => bias !== -Infinity);
  if (target === "vllm" || target === "sglang") {
    const name = TITLES[target];
    say(params.top_p === 1e-6, `${name} refuses a top_p of 0; a millionth keeps one token there, as 0 does here.`);
    say(has("penalty_scope") && counts, `${name}'s frequency and presence penalty count the output alone.`);
    say(params.temperature_last && !greedy, `${name} divides by the temperature before any filter.`);
    say(bans.length > 0, `Bans are said as a bias of minus infinity; the HTTP API has no such number, where -100 stands for it.`);
  }
  if (target === "vllm") {
    say(has("min_p") && (has("top_p") || has("top_k")) && !Array.isArray(params.order), "vLLM applies min-p before top-k and top-p: choose the order min_p,top_k,top_p here to have its set.");
    say(params.order === "joint", "vLLM's filters act one after the other.");
    say(edited && penalties && !params.bias_first, "vLLM adds the bias before the penalties: choose bias first here.");
    say(params.temperature > 0 && params.temperature < 0.01, "vLLM raises a temperature below 0.01 to 0.01.");
    say(has("repetition_scope"), "vLLM's repetition penalty counts prompt and output.");
    say(phrases.length > 0, "vLLM's bad words are texts, which it turns into ids itself, with a blank before them and without: other ids of the same text are not banned.");
  }
  if (target === "sglang") {
    say(has("top_k") && has("top_p") && params.order !== "joint", "SGLang lets top-k and top-p both see the unfiltered row: choose the order joint here to have its set.");
    say(has("repetition_penalty") && params.repetition_scope !== "output", "SGLang's repetition penalty counts the output alone: let repetition count output here.");
    say(true, "SGLang honours the seed only in its deterministic mode, and not with its FlashInfer backend; a top_k of 0 is an error there, -1 is off.");
  }
  if (target === "llama") {
    say(!params.temperature_last && !greedy, "llama.cpp's default chain applies the temperature last; choose temperature last here, or give --samplers another sequence there.");
    say(penalties, `llama.cpp's penalties all count the prompt and the output, the last 64 tokens of them unless --repeat-last-n says more; here the scope is the prompt, the output or both, and the penalty window says how many of the last tokens.`);
    say(has("dry"), "DRY breakers are strings there and ids here, and a breaker is not penalised itself there; it looks at the last 64 tokens there unless --dry-penalty-last-n says more.");
    say(has("mirostat"), "With mirostat llama.cpp leaves out all other samplers, penalties as well.");
    say(edited && penalties && !params.bias_first, "llama.cpp adds the bias before the penalties: choose bias first here.");
    say(has("dynamic_temperature"), "llama.cpp takes the entropy of what the earlier samplers left; here it is that of the whole edited row.");
    say(Number(params.seed) >= 2 ** 32 - 1, `llama.cpp takes the seed's low 32 bits: ${BigInt(params.seed) % 2n ** 32n}; all of them set asks it for a random one.`);
    say(params.order === "joint" || Array.isArray(params.order), "llama.cpp's filters act one after the other, in the sequence of --samplers.");
  }
  if (target === "transformers") {
    say(greedy, "A temperature of 0 is an error there: do_sample=False is greedy.");
    say(!greedy && (has("top_k") || has("epsilon_cutoff")), "transformers keeps every token equal to the last one kept; here ties are settled by id.");
    say(!greedy && has("typical_p"), "transformers applies typical-p after min-p.");
    say(params.order === "joint" || Array.isArray(params.order), "transformers' filters act one after the other, top-H, top-k, top-p, min-p, typical-p, epsilon, eta.");
    say(params.temperature_last && !greedy, "transformers divides by the temperature before any filter.");
    say(has("repetition_scope"), "transformers' repetition penalty counts prompt and output.");
    say(edited && has("repetition_penalty") && !params.bias_first, "transformers adds the bias before the repetition penalty.");
    say(true, "transformers draws from torch's global generator (torch.manual_seed), so a token depends on everything drawn before and on the batch.");
    say(!has("top_k") && !greedy, "Its default of top_k is 50 unless the model's configuration says otherwise; top_k=0 is off.");
  }
  return lines;
}
