// Decoding with a sampler, with a pool, and from drafts: every call is typed. `node decode.mjs`, after tsc, draws the same tokens on
// every machine.
import { GumballError, init, inspect, Pool, probabilities, Sampler, softmax, Status } from "gumball-wasm";
import type { Outputs, SamplingParams, State } from "gumball-wasm";

await init();
const vocab = 5;
const logits = new Float32Array([0.5, 2, -1, 1.5, 0]);
const params: SamplingParams = { temperature: 0.8, top_p: 0.9, seed: 7n, logit_bias: { 2: -Infinity } };

const sampler = new Sampler(params, vocab, { prompt: [3, 1] });
const token: number | undefined = sampler.sample(logits, { hook: (row) => { row[0] = -1; } });
const state: State = sampler.state;
const seed: bigint = sampler.seed;

const pool = new Pool(vocab, { slots: 8, top_n: 2 });
const slots = [pool.admit(params, [3, 1]), pool.resume(params, state)];
const out: Outputs = pool.step(logits, slots, { row_indices: [0, 0], forced: [null, 1] });
const tokens: Int32Array = out.tokens;
const ids: Int32Array = pool.draft(logits, [slots[0]!]);
const [drafts, probs]: [Int32Array, Float32Array] = pool.draft(logits, [slots[0]!], { probs: true });
const verified = pool.verify(new Float32Array(2 * vocab), [slots[0]!], [ids], { mode: "coupled" });
const emitted: Int32Array | undefined = verified.tokens[0];

const flat: Float32Array = softmax(logits, vocab, { temperature: 0.7 });
const [kept, statuses]: [Float32Array, Uint32Array] = probabilities(flat, vocab, { kind: "probabilities", top_k: 2, return_statuses: true });
const isEmpty = ((statuses[0] ?? 0) & Status.EMPTY) !== 0;
const winner: number | undefined = inspect(logits, params, { prompt: [3, 1] }).winner?.id;

try {
  new Sampler({ min_p: 2 }, vocab);
} catch (error) {
  if (!(error instanceof GumballError)) throw error;
  const { kind, parameter, value, allowed } = error;
  console.log({ kind, parameter, value, allowed });
}

// @ts-expect-error: a parameter that there is none of.
const slip: SamplingParams = { topk: 50 };
// @ts-expect-error: rows are typed arrays.
const refused = () => sampler.sample([1, 2, 3, 4, 5]);

console.log({ token, seed, tokens, ids, drafts, probs, emitted, kept, isEmpty, winner, slip, refused });
sampler.free();
pool.free();
