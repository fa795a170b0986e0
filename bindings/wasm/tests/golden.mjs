// The tokens that the engine pins, drawn through the package, and the marks that the detector finds; in Node and in browsers. `check` and
// `checkMarks` throw at the first difference.

import { bell, bf16, f16, grid, modelLike } from "./rows.mjs";

const SEED = 0x677562616c6c21n;
const PROMPT = [3, 1, 4, 1, 5];

const PARAMS = {
  greedy: { temperature: 0 },
  plain: {},
  "temperature 0.8": { temperature: 0.8 },
  "temperature 3": { temperature: 3 },
  "top_k 50": { temperature: 0.8, top_k: 50 },
  "top_p 0.9": { temperature: 0.8, top_p: 0.9 },
  "top_k 50 top_p 0.9": { temperature: 0.8, top_k: 50, top_p: 0.9 },
  "min_p 0.05": { temperature: 0.8, min_p: 0.05 },
  "typical_p 0.7": { temperature: 0.8, typical_p: 0.7 },
  "top_n_sigma 1.5": { temperature: 0.8, top_n_sigma: 1.5 },
  "epsilon_cutoff 0.001": { temperature: 0.8, epsilon_cutoff: 1e-3 },
  "eta_cutoff 0.002": { temperature: 0.8, eta_cutoff: 2e-3 },
  "xtc 0.5 0.05": { temperature: 0.8, xtc_probability: 0.5, xtc_threshold: 0.05 },
  "mirostat 4 0.2": { temperature: 0.8, mirostat: { tau: 4, eta: 0.2 } },
  "dynamic 0.5 1.5": { temperature: 0.8, dynamic_temperature: { min: 0.5, max: 1.5 } },
  penalties: {
    temperature: 0.8,
    repetition_penalty: 1.2,
    frequency_penalty: 0.4,
    presence_penalty: 0.3,
    logit_bias: { 7: 3, 8: -Infinity },
  },
  "dry and bans": {
    temperature: 0,
    dry: { multiplier: 0.8, allowed_length: 1 },
    no_repeat_ngram: 2,
    banned_ids: [2, 300],
  },
  joint: { temperature: 0.8, top_k: 40, top_p: 0.9, min_p: 0.02, order: "joint" },
  "min_p then top_k": { temperature: 0.8, top_k: 40, top_p: 0.9, min_p: 0.02, order: ["min_p", "top_p", "top_k"] },
  temperature_last: { temperature: 1.5, temperature_last: true, top_p: 0.8 },
};

/** Returns the streams: rows by name, a step each, with what their words are. */
function streams(recorded) {
  const steps = (row) => Array.from({ length: 8 }, (_, step) => row(step));
  return {
    "bell f32 1000": { rows: steps((step) => bell(1000, 2, step)) },
    "model f32 4099": { rows: steps((step) => modelLike(4099, 100 + step)) },
    "model bf16 8192": { rows: steps((step) => bf16(modelLike(8192, 200 + step))), dtype: "bfloat16" },
    "grid f16 777": { rows: steps((step) => f16(grid(777, 0.5, 20, step))), dtype: "float16" },
    "flat f32 513": { rows: steps(() => new Float32Array(513).fill(-1.5)) },
    smollm2: { rows: steps((step) => recorded.subarray(step * 49152, (step + 1) * 49152)), dtype: "bfloat16" },
  };
}

/** Throws unless two lists are equal. */
function equal(seen, pinned, what) {
  const [a, b] = [seen, pinned].map((list) => JSON.stringify(Array.from(list)));
  if (a !== b) throw new Error(`${what}: seen ${a}, pinned ${b}`);
}

/**
 * Draws all pinned tokens, by samplers, and by a pool where the package has one. `pinned` are the contents of both files of proof/conformance/golden,
 * `recorded` the words of proof/conformance/rows/smollm2.bf16. Returns how many tokens were drawn.
 */
export function check({ Sampler, Pool }, pinned, recorded) {
  const all = streams(recorded);
  const names = Object.keys(all).flatMap((stream) => Object.keys(PARAMS).map((params) => `${stream} ${params}`));
  equal(names.sort(), Object.keys(pinned).sort(), "the names of the streams");
  let drawn = 0;
  for (const [stream, { rows, dtype }] of Object.entries(all)) {
    const vocab = rows[0].length;
    for (const [name, params] of Object.entries(PARAMS)) {
      const sampler = new Sampler({ seed: SEED, ...params }, vocab, { prompt: PROMPT });
      const tokens = rows.flatMap((row) => {
        // A second sample of the same row, which the sequence does not follow.
        const fork = sampler.fork(1);
        const other = fork.sample(row, { dtype });
        fork.free();
        return [other, sampler.sample(row, { dtype })];
      });
      equal(tokens, pinned[`${stream} ${name}`], `${stream} ${name}`);
      drawn += tokens.length;
      sampler.free();
    }
    if (!Pool) continue;
    const pool = new Pool(vocab, { slots: names.length });
    const slots = Object.values(PARAMS).map((params) => pool.admit({ seed: SEED, ...params }, PROMPT));
    const row_indices = slots.map(() => 0);
    const seen = rows.map((row) => pool.step(row, slots, { row_indices, dtype }).tokens);
    Object.keys(PARAMS).forEach((name, request) => {
      const tokens = seen.map((step) => step[request]);
      equal(tokens, pinned[`${stream} ${name}`].filter((_, index) => index % 2 === 1), `${stream} ${name}, in a pool`);
      drawn += tokens.length;
    });
    pool.free();
  }
  return drawn;
}

/**
 * Looks for the marks of all pinned texts, whose scores and p-values must be the same bit for bit. `pinned` is the content of
 * proof/conformance/golden/marks.json. Returns how many texts there are.
 */
export function checkMarks({ add_watermark_keys, detect, find_marked }, pinned) {
  add_watermark_keys(pinned.watermark_keys);
  pinned.texts.forEach(({ ids, prompt, watermark, scheme, keys, evidence, length, alpha, parts }, index) => {
    equal([detect(ids, { prompt, watermark, scheme, keys })], [evidence], `the evidence of text ${index}`);
    equal(find_marked(ids, { prompt, watermark, scheme, length, alpha }), parts, `the marked parts of text ${index}`);
  });
  return pinned.texts.length;
}
