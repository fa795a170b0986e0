// How is this draw said to Gumball itself, so that a program draws the very token from the row that the page saves?
import { NPY_START } from "./bring.js";
import { toParams } from "./parameters.js";

/** The file that the page's button saves the row as. */
export const SAVED = "row.npy";

const INTEGERS = new Set(["top_k", "no_repeat_ngram", "min_tokens", "min_keep", "penalty_window", "no_repeat_ngram_window", "allowed_length", "window", "budget", "min_copies", "min_period", "max_period", "every", "seed"]);
const CLASSES = { dry: "Dry", mirostat: "Mirostat", dynamic_temperature: "DynamicTemperature", section: "Section", loops: "Loops" };
const whole = (value) => (Number.isInteger(value) ? String(BigInt(value)) : String(value));
const classes = (params) => Object.keys(CLASSES).filter((name) => name in params).map((name) => CLASSES[name]);

/** A value as Python writes it; keys of objects are ids. */
export function python(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === Infinity || value === -Infinity) return `float("${value > 0 ? "" : "-"}inf")`;
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (value instanceof Map) return `{${[...value].map(([key, one]) => `${python(key)}: ${python(one)}`).join(", ")}}`;
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}

/** The Python program. */
export function pythonCode(settings, row) {
  const params = toParams(settings);
  const field = ([name, value]) => {
    if (name in CLASSES) return `${name}=${CLASSES[name]}(${Object.entries(value).map(field).join(", ")})`;
    if (name === "logit_bias") return `logit_bias=${python(new Map(value))}`;
    return `${name}=${INTEGERS.has(name) ? whole(value) : python(value)}`;
  };
  const options = [row.ids.length ? `prompt=${python(row.ids)}` : "", settings.draw ? `draw=${settings.draw}` : ""].filter(Boolean);
  return [
    ...(settings.mu === undefined ? [] : ["from dataclasses import replace"]),
    "import numpy as np",
    `from gumball import ${[...classes(params), "Sampler", "SamplingParams"].sort().join(", ")}`,
    "",
    `logits = np.load("${SAVED}")`,
    `params = SamplingParams(${Object.entries(params).map(field).join(", ")})`,
    `sampler = Sampler(params, len(logits)${options.map((one) => `, ${one}`).join("")})`,
    ...(row.output.length ? [`for id in ${python(row.output)}:`, "    sampler.push(id)"] : []),
    ...(settings.mu === undefined ? [] : [`sampler = Sampler.resume(params, len(logits), replace(sampler.state, mu=${python(settings.mu)}))`]),
    "print(sampler.sample(logits))",
  ].join("\n");
}

/** An f32 as Rust writes it. */
function float(value) {
  if (value === Infinity || value === -Infinity) return `f32::${value > 0 ? "" : "NEG_"}INFINITY`;
  const text = String(value).replace("e+", "e");
  return /[.e]/.test(text) ? text : `${text}.0`;
}
const pascal = (name) => name.split("_").map((word) => word[0].toUpperCase() + word.slice(1)).join("");
const list = (ids) => `vec![${ids.map(whole).join(", ")}]`;

/** The Rust program. */
export function rustCode(settings, row) {
  const params = toParams(settings);
  const field = ([name, value]) => {
    if (name === "seed") return `seed: Some(${value})`;
    if (name === "mu") return `mu: Some(${float(value)})`;
    if (name in CLASSES) {
      const fields = Object.entries(value).map(field);
      if (name === "dry") return `dry: Dry { ${fields.join(", ")}, ..Default::default() }`;
      // Its `min` is a number of tokens, that of a dynamic temperature none.
      if (name === "section") return `section: Some(Section { ${fields.join(", ").replace(/\bmin: (\d+)\.0/, "min: $1")}, ..Default::default() })`;
      if (name === "loops") fields.push("..Default::default()");
      if (name === "mirostat" && value.mu === undefined) fields.push("mu: None");
      return `${name}: Some(${CLASSES[name]} { ${fields.join(", ")} })`;
    }
    if (name === "order") return `order: FilterOrder::${Array.isArray(value) ? `List(vec![${value.map((one) => `Filter::${pascal(one)}`).join(", ")}])` : value === "none" ? "List(vec![])" : pascal(value)}`;
    if (name.endsWith("_scope")) return `${name}: Scope::${pascal(value)}`;
    if (name === "allowed_ids") return `allowed_ids: Some(${list(value)})`;
    if (name === "logit_bias") return `logit_bias: vec![${value.map(([id, bias]) => `(${whole(id)}, ${float(bias)})`).join(", ")}]`;
    if (name === "bad_words") return `bad_words: vec![${value.map(list).join(", ")}]`;
    if (Array.isArray(value)) return `${name}: ${list(value)}`;
    return `${name}: ${typeof value !== "number" ? value : INTEGERS.has(name) ? whole(value) : float(value)}`;
  };
  const scopes = Object.keys(params).some((name) => name.endsWith("_scope"));
  const order = "order" in params ? ["FilterOrder", ...(Array.isArray(params.order) ? ["Filter"] : [])] : [];
  const names = [...classes(params), ...order, ...(scopes ? ["Scope"] : []), ...(settings.mu === undefined ? [] : ["State"]), "Sampler", "SamplingParams"].sort();
  const context = (row.ids.length ? `.with_prompt(&[${row.ids.join(", ")}])` : "") + (settings.draw ? `.with_draw(${settings.draw})` : "");
  return [
    `use gumball_engine::{${names.join(", ")}};`,
    "",
    "fn main() -> Result<(), Box<dyn std::error::Error>> {",
    `    // The numbers of ${SAVED} begin at byte ${NPY_START}.`,
    `    let file = std::fs::read("${SAVED}")?;`,
    `    let logits: Vec<f32> = file[${NPY_START}..].chunks_exact(4).map(|z| f32::from_le_bytes([z[0], z[1], z[2], z[3]])).collect();`,
    "    let params = SamplingParams {",
    ...Object.entries(params).map((entry) => `        ${field(entry)},`),
    "        ..Default::default()",
    "    };",
    `    let mut sampler = Sampler::new(params, logits.len())?${context};`,
    ...(row.output.length ? [`    for id in [${row.output.join(", ")}] {`, "        sampler.push(id);", "    }"] : []),
    ...(settings.mu === undefined ? [] : [`    let state = State { mu: ${float(settings.mu)}, ..sampler.sequence().state() };`, "    let mut sampler = Sampler::new(sampler.sequence().params().clone(), logits.len())?.with_state(state)?;"]),
    '    println!("{:?}", sampler.sample(&logits)?.id);',
    "    Ok(())",
    "}",
  ].join("\n");
}
