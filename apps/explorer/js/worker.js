// What does the page ask of the wasm core? Everything that is said about sampling, in a worker, so that the page answers while it counts; and the
// rows that were brought, which may be long.
import { Pool, Sampler, init, inspect, parameters, version } from "./index.js";
import { APART } from "./bring.js";
import { NEUTRAL, adopt, onlyEdits, toParams } from "./parameters.js";
import { parting } from "./parting.js";

/** Rows that were handed over, by their key. */
const rows = new Map();

/** Traces a row. `options` are those of `inspect` besides. */
function traced(row, settings, options) {
  const told = { prompt: row.ids, output: row.output, dtype: row.dtype, draw: settings.draw ?? 0, source: row.name, ...(settings.mu !== undefined && { mu: settings.mu }), ...options };
  // JSON cannot say a seed above 2^53; the settings can.
  return { ...inspect(row.logits, toParams(settings), told), seed: settings.seed };
}

/** Returns what `stepped` makes of a pool with a sequence in a slot that has a row's history, and the mean of adaptive-p if `mu` says it. */
function pooled(row, params, options, stepped, mu) {
  const pool = new Pool(row.logits.length, options);
  try {
    let slot = pool.admit(params, row.ids);
    for (const id of row.output) pool.push(slot, id);
    if (mu !== undefined) {
      const state = { ...pool.state(slot), mu };
      pool.release(slot);
      slot = pool.resume(params, state);
    }
    return stepped(pool, slot);
  } finally {
    pool.free();
  }
}

/** The logits of a row as the edits leave them, before its bans; the ids that the bans leave; and the likeliest of these, in their order. */
const edited = (row, settings, listed) => pooled(row, { ...toParams(onlyEdits(settings)), logprobs: { mode: "edited", top_n: listed } }, { slots: 1, kept: true, top_n: listed }, (pool, slot) => {
  let z;
  const { kept, top_ids } = pool.step(row.logits, [slot], { dtype: row.dtype, hooks: [(logits) => void (z = logits.slice())] });
  return { z, ids: kept[0], top: top_ids[0] };
});
/** How many tokens of the order the cuts of a trace lie within. */
const cutAt = ({ filters, kept, candidates }) => Math.max(0, ...[...filters.map(({ kept }) => kept), [kept.first, kept.end]].map(([first, end]) => (first === 0 && end === candidates ? 0 : end)));

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
  trace: ({ key, settings, forced, brief }) => traced(rows.get(key), settings, { brief: brief ?? false, ...(forced !== undefined && { forced }) }),

  /** Compares the decisions about two rows, and what the second's settings and ids make of the first one. */
  part({ sides }) {
    const given = sides.map(({ key, settings }, side) => {
      const row = rows.get(key);
      const trace = traced(row, settings, { brief: side > 0 });
      const raw = edited(row, NEUTRAL, cutAt(trace));
      return { row, settings, trace, raw, edits: trace.edits.changed ? edited(row, settings, cutAt(trace)) : raw };
    });
    const [one, other] = given;
    const crossed = { ...one.row, ids: other.row.ids, output: other.row.output };
    const isAlike = JSON.stringify([one.settings, one.row.ids, one.row.output]) === JSON.stringify([other.settings, crossed.ids, crossed.output]);
    const told = ({ row, settings, trace }, id) => (trace.winner?.id === id ? trace.winner : id < row.logits.length ? traced(row, settings, { brief: true, forced: id }).winner : null);
    const drawn = given.flatMap(({ trace }) => trace.winner?.id ?? []);
    return parting(one, other, {
      edits: isAlike ? one.edits : edited(crossed, other.settings, 0),
      drawn: isAlike ? one.trace.winner?.id : traced(crossed, other.settings, { brief: true }).winner?.id,
      tokens: [...new Set(drawn)].map((id) => given.map((side) => told(side, id))),
    });
  },

  apart: ({ name, given }) => APART[name](...given),

  /** Draws `n` tokens under the draw indices from `from` on, the row's history considered. */
  draws: ({ key, settings, from, n }) => pooled(rows.get(key), toParams(settings), { slots: n + 1 }, (pool, slot) => {
    const { logits, dtype } = rows.get(key);
    const slots = Array.from({ length: n }, (_, index) => pool.fork(slot, from + index));
    return [...pool.step(logits, slots, { dtype, row_indices: slots.map(() => 0) }).tokens];
  }, settings.mu),

  /** Draws the token after a row, as a text goes on. */
  draw({ key, settings }) {
    const row = rows.get(key);
    const params = toParams(settings);
    let sampler = new Sampler(params, row.logits.length, { prompt: row.ids, draw: settings.draw ?? 0 });
    try {
      for (const id of row.output) sampler.push(id);
      if (settings.mu !== undefined) {
        const resumed = Sampler.resume(params, row.logits.length, { ...sampler.state, mu: settings.mu });
        sampler.free();
        sampler = resumed;
      }
      return { id: sampler.sample(row.logits, { dtype: row.dtype }), mu: sampler.state.mu };
    } finally {
      sampler.free();
    }
  },
};

self.onmessage = async ({ data: { id, what, ...given } }) => {
  try {
    self.postMessage({ id, answer: await asked[what](given) });
  } catch (error) {
    self.postMessage({ id, error: { message: error.message, parameter: error.parameter } });
  }
};
