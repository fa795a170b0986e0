// What does the page ask of the wasm core? Everything that is said about sampling: this file has no arithmetic of its own.
import { Sampler, init, inspect, version } from "./index.js";
import { toParams } from "./parameters.js";

/** Compiles the module from its bytes. */
export async function start(bytes) {
  await init({ module_or_path: bytes });
  return version();
}

/** The options of a row: its history and the type of its numbers. */
function context(row, settings) {
  return { prompt: row.ids, output: row.output, dtype: row.dtype, draw: settings.draw ?? 0 };
}

/**
 * Traces a row: what every stage did to it. `forced` describes one token besides, as the trace's winner.
 * @param {import("./rows.js").Row} row
 * @param {Record<string, any>} settings
 * @param {number} [forced]
 */
export function trace(row, settings, forced) {
  const options = { ...context(row, settings), source: row.name, texts: (id) => row.texts?.[id] };
  if (forced !== undefined) options.forced = forced;
  // JSON cannot say a seed above 2^53; the settings can.
  return { ...inspect(row.logits, toParams(settings), options), seed: settings.seed };
}

/** Draws `n` tokens that differ in their draw index alone, the row's history considered. */
export function draws(row, settings, n) {
  const sampler = new Sampler(toParams(settings), row.logits.length, { prompt: row.ids, draw: settings.draw ?? 0 });
  try {
    for (const id of row.output) sampler.push(id);
    return sampler.sample_n(row.logits, n, { dtype: row.dtype });
  } finally {
    sampler.free();
  }
}
