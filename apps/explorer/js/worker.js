// What does the page ask of the wasm core? Everything that is said about sampling, in a worker, so that the page answers while it counts.
import { Sampler, init, inspect, parameters, version } from "./index.js";
import { adopt, toParams } from "./parameters.js";

/** Rows that were handed over, by their key. */
const rows = new Map();

/** Returns what `drawn` makes of a row and of a sampler that has its history. */
function sampled(key, settings, drawn) {
  const row = rows.get(key);
  const sampler = new Sampler(toParams(settings), row.logits.length, { prompt: row.ids, draw: settings.draw ?? 0 });
  try {
    for (const id of row.output) sampler.push(id);
    return drawn(sampler, row);
  } finally {
    sampler.free();
  }
}

const asked = {
  async start({ module }) {
    await init({ module_or_path: module });
    const table = parameters();
    adopt(table);
    return { version: version(), parameters: table };
  },

  row({ key, row }) {
    rows.set(key, row);
  },

  forget({ key }) {
    rows.delete(key);
  },

  /** Traces a row: what every stage did to it. `forced` describes one token besides, as the trace's winner; `brief` leaves out the race. */
  trace({ key, settings, forced, brief }) {
    const row = rows.get(key);
    const options = { prompt: row.ids, output: row.output, dtype: row.dtype, draw: settings.draw ?? 0, source: row.name, brief: brief ?? false };
    if (forced !== undefined) options.forced = forced;
    // JSON cannot say a seed above 2^53; the settings can.
    return { ...inspect(row.logits, toParams(settings), options), seed: settings.seed };
  },

  /** Draws `n` tokens that differ in their draw index alone, the row's history considered. */
  draws: ({ key, settings, n }) => sampled(key, settings, (sampler, { logits, dtype }) => sampler.sample_n(logits, n, { dtype })),

  /** Draws the token after a row, as a text goes on. */
  draw: ({ key, settings }) => sampled(key, settings, (sampler, { logits, dtype }) => ({ id: sampler.sample(logits, { dtype }), mu: sampler.state.mu })),
};

self.onmessage = async ({ data: { id, what, ...given } }) => {
  try {
    self.postMessage({ id, answer: await asked[what](given) });
  } catch (error) {
    self.postMessage({ id, error: { message: error.message, parameter: error.parameter } });
  }
};
