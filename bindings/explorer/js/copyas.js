// How are these settings said elsewhere? Code for Gumball, and for engines that name them otherwise, with what docs/semantics.md knows.
import { at, h } from "./dom.js";
import { NEUTRAL, toParams } from "./parameters.js";

/** Names of other engines; a parameter that is missing there has no counterpart. */
const NAMES = {
  vllm: { temperature: "temperature", top_p: "top_p", top_k: "top_k", min_p: "min_p", seed: "seed", repetition_penalty: "repetition_penalty", frequency_penalty: "frequency_penalty", presence_penalty: "presence_penalty", min_tokens: "min_tokens", stop_ids: "stop_token_ids", logit_bias: "logit_bias", allowed_ids: "allowed_token_ids" },
  sglang: { temperature: "temperature", top_p: "top_p", top_k: "top_k", min_p: "min_p", seed: "sampling_seed", repetition_penalty: "repetition_penalty", frequency_penalty: "frequency_penalty", presence_penalty: "presence_penalty", min_tokens: "min_new_tokens", stop_ids: "stop_token_ids", logit_bias: "logit_bias" },
  transformers: { temperature: "temperature", top_p: "top_p", top_k: "top_k", min_p: "min_p", typical_p: "typical_p", epsilon_cutoff: "epsilon_cutoff", eta_cutoff: "eta_cutoff", repetition_penalty: "repetition_penalty", no_repeat_ngram: "no_repeat_ngram_size", min_tokens: "min_new_tokens", stop_ids: "eos_token_id" },
  llama: { temperature: "--temp", top_p: "--top-p", top_k: "--top-k", min_p: "--min-p", seed: "--seed", typical_p: "--typical", top_n_sigma: "--top-nsigma", xtc_probability: "--xtc-probability", xtc_threshold: "--xtc-threshold", repetition_penalty: "--repeat-penalty", frequency_penalty: "--frequency-penalty", presence_penalty: "--presence-penalty" },
};
export const TARGETS = { rust: "Gumball, Rust", python: "Gumball, Python", vllm: "vLLM", sglang: "SGLang", llama: "llama.cpp", transformers: "transformers" };

const python = (value) => {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === Infinity || value === -Infinity) return `float("${value > 0 ? "" : "-"}inf")`;
  if (Array.isArray(value)) return `[${value.map((one) => (Array.isArray(one) ? `(${one.map(python).join(", ")}${one.length === 1 ? "," : ""})` : python(one))).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, one]) => `"${name}": ${python(one)}`).join(", ")}}`;
  return typeof value === "string" ? JSON.stringify(value) : String(value);
};
const float = (value) => (value === -Infinity ? "f32::NEG_INFINITY" : Number.isInteger(value) ? `${value}.0` : String(value));
const INTEGERS = new Set(["top_k", "no_repeat_ngram", "min_tokens"]);
const FILTER_NAMES = { top_k: "TopK", top_p: "TopP", min_p: "MinP" };
const pascal = (name) => name[0].toUpperCase() + name.slice(1);

function rust(params) {
  const field = (name, value) => {
    if (name === "seed") return `seed: Some(${value})`;
    if (name === "dry") return `dry: Dry { multiplier: ${float(value.multiplier)}, base: ${float(value.base)}, allowed_length: ${value.allowed_length}, ${value.breakers ? `breakers: vec![${value.breakers.join(", ")}], ` : ""}..Default::default() }`;
    if (name === "dynamic_temperature") return `dynamic_temperature: Some(DynamicTemperature { min: ${float(value.min)}, max: ${float(value.max)}, exponent: ${float(value.exponent)} })`;
    if (name === "mirostat") return `mirostat: Some(Mirostat { tau: ${float(value.tau)}, eta: ${float(value.eta)}, mu: ${value.mu === undefined ? "None" : `Some(${float(value.mu)})`} })`;
    if (name === "order") return `order: FilterOrder::${Array.isArray(value) ? `List(vec![${value.map((one) => `Filter::${FILTER_NAMES[one]}`).join(", ")}])` : pascal(value)}`;
    if (name.endsWith("_scope")) return `${name}: Scope::${pascal(value)}`;
    if (name === "allowed_ids") return `allowed_ids: Some(vec![${value.join(", ")}])`;
    if (name === "logit_bias") return `logit_bias: vec![${value.map(([id, bias]) => `(${id}, ${float(bias)})`).join(", ")}]`;
    if (name === "bad_words") return `bad_words: vec![${value.map((ids) => `vec![${ids.join(", ")}]`).join(", ")}]`;
    if (Array.isArray(value)) return `${name}: vec![${value.join(", ")}]`;
    return `${name}: ${typeof value === "number" && !INTEGERS.has(name) ? float(value) : value}`;
  };
  const fields = Object.entries(params).map(([name, value]) => `    ${field(name, value)},\n`).join("");
  return `let params = SamplingParams {\n${fields}    ..Default::default()\n};\nlet mut sampler = Sampler::new(params, vocab)?.with_prompt(prompt);\nlet token = sampler.sample(&logits)?.id;`;
}

/** What another engine does differently, for these settings. */
export function differences(target, params) {
  const has = (name) => params[name] !== undefined;
  const said = ["The rule is the same as far as this page says; the drawn token is another one, since that engine has other random numbers."];
  const say = (when, text) => when && said.push(text);
  if (target === "vllm") {
    say(has("min_p") && (has("top_p") || has("top_k")) && !Array.isArray(params.order), "vLLM applies min-p before top-k and top-p: choose the order min_p,top_k,top_p here to have its set.");
    say(params.top_p === 0, "vLLM refuses a top_p of 0; here it keeps one token.");
    say(has("logit_bias") && (has("repetition_penalty") || has("frequency_penalty") || has("presence_penalty")), "vLLM adds the bias before the penalties, here it comes after them.");
    say(params.temperature > 0 && params.temperature < 0.01, "vLLM raises a temperature below 0.01 to 0.01.");
  }
  if (target === "sglang") {
    say(has("top_k") && has("top_p") && params.order !== "joint", "SGLang lets top-k and top-p both see the unfiltered row: choose the order joint here to have its set.");
    say(has("repetition_penalty") && params.repetition_scope !== "output", "SGLang's repetition penalty counts the output alone: let repetition count output here.");
    say(params.top_p === 0, "SGLang refuses a top_p of 0; here it keeps one token.");
    say(true, "SGLang honours the seed only in its deterministic mode, and not with its FlashInfer backend; a top_k of 0 is an error there, -1 is off.");
  }
  if (target === "llama") {
    say(!params.temperature_last, "llama.cpp's default chain applies the temperature last; choose temperature last here, or give --samplers another sequence there.");
    say(has("repetition_penalty") || has("frequency_penalty") || has("presence_penalty"), "llama.cpp's penalties see the last 64 tokens only (--repeat-last-n), and all three count them; here the scope is the prompt, the output or both.");
    say(has("dry"), "DRY breakers are strings there and ids here, and it looks at the last 64 tokens there by default, at the whole history here.");
    say(has("mirostat"), "With mirostat llama.cpp leaves out all other samplers, penalties as well.");
    say(has("logit_bias"), "llama.cpp adds the bias before the penalties.");
    say(has("dynamic_temperature"), "llama.cpp takes the entropy of what the earlier samplers left; here it is that of the whole edited row.");
  }
  if (target === "transformers") {
    say(params.temperature === 0, "A temperature of 0 is an error there: do_sample=False is greedy.");
    say(has("top_k") || has("epsilon_cutoff"), "transformers keeps every token equal to the last one kept; here ties are settled by id.");
    say(has("typical_p"), "transformers applies typical-p after min-p.");
    say(true, "transformers draws from torch's global generator (torch.manual_seed), so a token depends on everything drawn before and on the batch.");
    say(!has("top_k"), "Its default of top_k is 50 unless the model's configuration says otherwise; top_k=0 is off.");
  }
  return said;
}

/** Returns the code for a target, and what cannot be said there. */
export function code(target, settings) {
  const params = toParams(settings);
  if (target === "rust") return { text: rust(params), missing: [] };
  if (target === "python") return { text: `params = SamplingParams(${Object.entries(params).map(([name, value]) => `${name}=${python(value)}`).join(", ")})\nslot = pool.admit(params, prompt=prompt)\ntoken = pool.step(logits, [slot]).tokens[0]`, missing: [] };
  const names = NAMES[target];
  const given = { temperature: settings.temperature, ...params };
  const missing = Object.keys(given).filter((name) => !(name in names) && !["order", "repetition_scope", "penalty_scope", "temperature_last"].includes(name));
  const pairs = Object.entries(given).filter(([name]) => name in names);
  if (target === "llama") {
    const flags = pairs.map(([name, value]) => `${names[name]} ${value}`);
    if (!("top_k" in given)) flags.push("--top-k 0");
    if (!("top_p" in given)) flags.push("--top-p 1");
    if (!("min_p" in given)) flags.push("--min-p 0");
    if (given.dry) flags.push(`--dry-multiplier ${given.dry.multiplier}`, `--dry-base ${given.dry.base}`, `--dry-allowed-length ${given.dry.allowed_length}`, "--dry-penalty-last-n -1");
    if (given.mirostat) flags.push("--mirostat 2", `--mirostat-ent ${given.mirostat.tau}`, `--mirostat-lr ${given.mirostat.eta}`);
    for (const [id, bias] of given.logit_bias ?? []) flags.push(`--logit-bias ${id}${bias < 0 ? "" : "+"}${bias === -Infinity ? "-inf" : bias}`);
    return { text: `llama-cli -m model.gguf ${flags.join(" ")}`, missing: missing.filter((name) => !["dry", "mirostat", "logit_bias"].includes(name)) };
  }
  const value = (name, one) => (name === "logit_bias" ? python(Object.fromEntries(one)) : python(one));
  const list = pairs.map(([name, one]) => `${names[name]}=${value(name, one)}`);
  if (target === "vllm") return { text: `params = vllm.SamplingParams(${list.join(", ")})`, missing };
  if (target === "sglang") return { text: `sampling_params = {${pairs.map(([name, one]) => `"${names[name]}": ${value(name, one)}`).join(", ")}}`, missing };
  const { temperature } = settings;
  const shape = temperature === 0 ? ["do_sample=False", ...list.filter((one) => !one.startsWith("temperature="))] : ["do_sample=True", ...list];
  if (!("top_k" in given) && temperature !== 0) shape.push("top_k=0");
  return { text: `torch.manual_seed(${params.seed})\nmodel.generate(**inputs, ${shape.join(", ")})`, missing: missing.filter((name) => name !== "seed") };
}

/** Shows the code of a target. */
export function showCopy(target, settings) {
  const known = target in TARGETS ? target : "rust";
  const { text, missing } = code(known, settings);
  at("code").textContent = text;
  const own = known === "rust" || known === "python";
  const lines = own ? ["The same token, bit for bit, from the same logits, history, position and seed."] : differences(known, toParams(settings));
  if (missing.length) lines.push(`Has no counterpart there: ${missing.join(", ")}.`);
  at("differences").replaceChildren(...lines.map((line) => h("li", {}, line)));
  for (const button of document.querySelectorAll("#targets button")) button.setAttribute("aria-pressed", String(button.dataset.target === known));
}
