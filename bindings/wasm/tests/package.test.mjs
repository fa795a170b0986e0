// Every class and function of the package, in Node: what it gives, and what it refuses.
import assert from "node:assert/strict";
import test from "node:test";
import vm from "node:vm";

import * as gumball from "../pkg/node.js";
import { bf16, modelLike } from "./rows.mjs";

const { GumballError, Pool, Sampler, Status } = gumball;
const VOCAB = 500;
const rows = (count, seed = 1) => {
  const all = new Float32Array(count * VOCAB);
  for (let row = 0; row < count; row++) all.set(modelLike(VOCAB, seed + row), row * VOCAB);
  return all;
};
const row = (seed = 1) => rows(1, seed);

/** Asserts that a call throws a GumballError with these fields. */
function refuses(call, fields) {
  assert.throws(call, (error) => {
    assert.ok(error instanceof GumballError && error instanceof Error, String(error));
    assert.equal(error.name, "GumballError");
    for (const [name, value] of Object.entries(fields)) {
      if (value instanceof RegExp) assert.match(error[name], value);
      else assert.equal(error[name], value, `${name} of: ${error.message}`);
    }
    for (const name of ["parameter", "value", "allowed"]) assert.equal(typeof error[name], "string");
    return true;
  });
}

test("a sampler keeps its sequence", () => {
  const sampler = new Sampler({ temperature: 0.8, seed: 7 }, VOCAB, { prompt: [3, 1] });
  const first = sampler.sample(row());
  assert.ok(first >= 0 && first < VOCAB);
  assert.deepEqual([...sampler.output], [first]);
  assert.deepEqual([...sampler.state.prompt], [3, 1]);
  assert.equal(sampler.state.position, 3);
  assert.equal(sampler.seed, 7n);
  assert.equal(sampler.vocab, VOCAB);
  assert.equal(sampler.status, 0);
  assert.equal(sampler.temperature, Math.fround(0.8));
  assert.equal(sampler.state.mu, 0);
  assert.equal(sampler.logprobs, undefined);
  sampler.push(9);
  assert.deepEqual([...sampler.output], [first, 9]);
  sampler.shorten(2);
  assert.equal(sampler.sample(row()), first, "the draw after tokens were taken back is the draw before it");
  sampler.reset([3, 1]);
  assert.equal(sampler.sample(row()), first);
  sampler.free();
});

test("a fork draws as sample_n does under its index", () => {
  const params = { temperature: 2, seed: 2n ** 64n - 1n };
  const sampler = new Sampler(params, VOCAB);
  assert.equal(sampler.seed, 2n ** 64n - 1n);
  const drawn = sampler.sample_n(row(), 8);
  assert.equal(drawn.length, 8);
  assert.deepEqual(sampler.output.length, 0);
  const forks = Array.from(drawn, (_, draw) => sampler.fork(draw).sample(row()));
  assert.deepEqual([...drawn], forks);
  assert.ok(new Set(forks).size > 1);
});

for (const [name, steered] of Object.entries({ mirostat: { mirostat: { tau: 4, eta: 0.2 } }, "adaptive-p": { adaptive_target: 0.3 } })) test(`a state goes on elsewhere with ${name}`, () => {
  const params = { temperature: 1.2, ...steered, seed: 5 };
  const here = new Sampler(params, VOCAB, { prompt: [1, 2, 3], draw: 4 });
  here.sample(row(1));
  const state = here.state;
  assert.deepEqual(Object.keys(state), ["prompt", "output", "seed", "position", "draw", "mu"]);
  const there = Sampler.resume(params, VOCAB, state);
  const pool = new Pool(VOCAB, { slots: 1 });
  const slot = pool.resume(params, state);
  const expected = here.sample(row(2));
  assert.equal(there.sample(row(2)), expected);
  assert.equal(pool.step(row(2), [slot]).tokens[0], expected);
  assert.deepEqual(pool.state(slot), here.state);
});

test("a state without a position is behind its ids", () => {
  const resumed = (state) => Sampler.resume({ seed: 1 }, VOCAB, { seed: 1, ...state }).state.position;
  assert.equal(resumed({}), 0);
  assert.equal(resumed({ prompt: [1, 2], output: [3] }), 3);
  assert.equal(resumed({ prompt: [1, 2], position: 9 }), 9);
});

test("counts that no text reaches are one", () => {
  gumball.add_watermark_keys("0 000102030405060708090a0b0c0d0e0f");
  const draw = (params) => new Sampler({ seed: 1, ...params }, VOCAB, { prompt: [1, 2, 9, 7, 1, 2] }).sample(row());
  for (const window of [2 ** 20, 2 ** 32 - 3, 2 ** 32 - 1, 0]) {
    assert.equal(draw({ watermark: { context: 2, scope: "both", window } }), draw({ watermark: { context: 2, scope: "both" } }), `window ${window}`);
  }
  const ids = Array.from({ length: 40 }, (_, id) => id);
  const found = (length) => gumball.find_marked(ids, { length, alpha: 0.9 });
  assert.deepEqual(found(2 ** 32 - 1), found(40));
});

test("a seed that nobody gave is fresh, and readable", () => {
  const [a, b] = [new Sampler({}, VOCAB).seed, new Sampler({}, VOCAB).seed];
  assert.equal(typeof a, "bigint");
  assert.notEqual(a, b);
  assert.equal(new Sampler({ seed: a }, VOCAB).sample(row()), new Sampler({ seed: String(a) && a }, VOCAB).sample(row()));
});

test("masks, forced tokens and kept sets come with a row", () => {
  const sampler = new Sampler({ top_k: 3, seed: 1 }, VOCAB);
  const mask = new Uint32Array(16);
  mask[1] = 1 << 5;
  assert.equal(sampler.sample(row(), { mask }), 37);
  assert.equal(sampler.sample(row(), { forced: 11 }), 11);
  sampler.collect_kept(true);
  const token = sampler.sample(row());
  assert.equal(sampler.kept.length, 3);
  assert.ok(sampler.kept.includes(token));
  assert.equal(sampler.sample(row(), { mask: new Int32Array(0) }), undefined);
  assert.equal(sampler.status, Status.EMPTY);
});

test("a hook edits a row, and what it throws changes nothing", () => {
  const sampler = new Sampler({ temperature: 0 }, VOCAB);
  assert.equal(sampler.sample(row(), { hook: (logits) => void (logits[123] = 1000) }), 123);
  const before = [...sampler.output];
  assert.throws(() => sampler.sample(row(), { hook: () => { throw new RangeError("mine"); } }), /^RangeError: mine$/);
  assert.deepEqual([...sampler.output], before);
  refuses(() => sampler.sample(row(), { hook: (logits) => logits }), { kind: "type" });
  refuses(() => sampler.sample(row(), { hook: 3 }), { kind: "type", parameter: "hook" });
  // A sampler whose hook uses it is busy.
  assert.throws(() => sampler.sample(row(), { hook: () => void sampler.push(1) }), /recursive use/);
  assert.deepEqual([...sampler.output], before);
});

test("logprobs come with a row", () => {
  const params = { temperature: 0.7, seed: 2, logprobs: { mode: "raw", top_n: 3, ids: [5, 6] } };
  const sampler = new Sampler(params, VOCAB);
  const token = sampler.sample(row());
  const { token: drawn, top, ids } = sampler.logprobs;
  assert.equal(drawn.id, token);
  assert.deepEqual(top.map((one) => one.rank), [1, 2, 3]);
  assert.deepEqual(ids.map((one) => one.id), [5, 6]);
  const selected = gumball.selected_logprobs(row(), VOCAB, [token]);
  assert.equal(selected.logprobs[0], drawn.logprob);
  assert.equal(selected.ranks[0], drawn.rank);
  const pool = new Pool(VOCAB, { slots: 2, top_n: 3, ids: 2 });
  const out = pool.step(row(), [pool.admit(params)]);
  assert.equal(out.tokens[0], token);
  assert.equal(out.logprobs[0], drawn.logprob);
  assert.deepEqual([...out.top_ids[0]], top.map((one) => one.id));
  assert.deepEqual([...out.id_logprobs[0]], ids.map((one) => one.logprob));
  refuses(() => pool.admit({ logprobs: { top_n: 4 } }), { parameter: "logprobs.top_n", value: "4" });
  const short = new Sampler({ ...params, logprobs: 3 }, VOCAB);
  short.sample(row());
  assert.deepEqual(short.logprobs.top, top);
  refuses(() => new Sampler({ logprobs: 1.5 }, VOCAB), { parameter: "logprobs", value: "1.5" });
});

test("a row of probabilities is drawn from as one", () => {
  const probabilities = gumball.softmax(row(), VOCAB);
  const sampler = new Sampler({ top_p: 0.9, seed: 4 }, VOCAB);
  const kind = "probabilities";
  assert.ok(sampler.sample(probabilities, { kind }) >= 0);
  refuses(() => new Sampler({ temperature: 0.5 }, VOCAB).sample(probabilities, { kind }), { parameter: "temperature" });
  refuses(() => sampler.sample(probabilities, { kind, hook: () => {} }), { kind: "conflict", parameter: "hook" });
});

test("rows are typed arrays, of three types", () => {
  const sampler = new Sampler({ temperature: 0 }, VOCAB);
  const best = sampler.sample(bf16(row()), { dtype: "bfloat16" });
  assert.equal(sampler.sample(row()), best);
  assert.ok(sampler.sample(new Uint16Array(VOCAB).fill(0x3c00), { dtype: "float16" }) === 0);
  refuses(() => sampler.sample(bf16(row())), { parameter: "dtype", value: "left out" });
  refuses(() => sampler.sample(row(), { dtype: "float16" }), { parameter: "dtype" });
  for (const other of [new Float64Array(VOCAB), [...row()], "rows", null, undefined, 3]) {
    refuses(() => sampler.sample(other), { kind: "type", parameter: "logits" });
  }
  for (const numbers of [new Float64Array(row()), [...row()]]) {
    refuses(() => sampler.sample(numbers), { allowed: /new Float32Array\(logits\) rounds one$/ });
    refuses(() => gumball.softmax(numbers, VOCAB), { allowed: /new Float32Array\(logits\) rounds one$/ });
    refuses(() => gumball.judge(numbers, [[1]], new Float32Array(2 * VOCAB), VOCAB, { seed: 1, position: 0 }), { allowed: /new Float32Array\(draft_probs\) rounds one$/ });
  }
  refuses(() => sampler.sample(row().subarray(1)), { kind: "length", parameter: "logits", value: "499" });
  assert.equal(sampler.sample(rows(2).subarray(VOCAB)), new Sampler({ temperature: 0 }, VOCAB).sample(row(2)));
});

test("what cannot be meant is refused by its name", () => {
  const make = (params, vocab = VOCAB, options = undefined) => () => new Sampler(params, vocab, options);
  refuses(make({ temperature: -1 }), { kind: "out_of_range", parameter: "temperature", value: "-1", allowed: /0/ });
  refuses(make({ temperature: NaN }), { parameter: "temperature", value: "NaN" });
  refuses(make({ temperature: "hot" }), { kind: "type", parameter: "temperature", value: '"hot"', allowed: "a number" });
  refuses(make({ min_p: 2 }), { kind: "out_of_range", parameter: "min_p" });
  refuses(make({ topk: 50 }), { kind: "unknown", parameter: "params", value: "topk", allowed: /top_k/, message: /^params "topk" is not known \(do you mean "top_k"\?\); known/ });
  refuses(make({ max_tokens: 50 }), { kind: "unknown", value: "max_tokens", message: /^params "max_tokens" is not known \(to end a text .* the caller's part\)/ });
  refuses(make({ dry: { multiplyer: 1 } }), { kind: "unknown", parameter: "dry", value: "multiplyer", allowed: /multiplier/ });
  refuses(make({ mirostat: { eta: 0.1 } }), { kind: "type", parameter: "mirostat", allowed: /tau/ });
  refuses(make({ seed: -1 }), { kind: "out_of_range", parameter: "seed" });
  refuses(make({ seed: 2n ** 64n }), { parameter: "seed" });
  refuses(make({ seed: 0.5 }), { parameter: "seed", value: "0.5" });
  refuses(make({ seed: 2 ** 60 }), { parameter: "seed", allowed: /BigInt/ });
  refuses(make({ mirostat: { tau: 5, eta: 0.1 }, top_k: 5 }), { kind: "conflict" });
  refuses(make({ banned_ids: [VOCAB] }), { parameter: "banned_ids" });
  refuses(make([0.5]), { kind: "type", parameter: "params" });
  refuses(make(3), { kind: "type", parameter: "params" });
  refuses(make({}, 0), { parameter: "vocab" });
  refuses(make({}, 2 ** 21), { parameter: "vocab" });
  refuses(make({}, "500"), { kind: "type", parameter: "vocab" });
  for (const swapped of [make(VOCAB, {}), () => new Pool({}, VOCAB), () => Sampler.resume(VOCAB, {}, {})]) {
    refuses(swapped, { kind: "type", parameter: "vocab", allowed: /new Sampler\(params, vocab\), but new Pool\(vocab\)/ });
  }
  refuses(make({}, VOCAB, { promt: [1] }), { kind: "unknown", parameter: "options", value: "promt" });
  refuses(make({}, VOCAB, { route: "slow" }), { kind: "unknown" });
  refuses(make({}, VOCAB, { prompt: "ids" }), { kind: "type", parameter: "prompt" });
  const sampler = make({})();
  refuses(() => sampler.sample(row(), { forced: VOCAB }), { parameter: "forced", value: "500" });
  refuses(() => sampler.sample(row(), { mask: new Uint32Array(VOCAB) }), { parameter: "mask" });
  refuses(() => sampler.shorten(1), { kind: "out_of_range" });
  assert.equal(sampler.state.position, 0);
});

test("parameters come in every form that they are written in", () => {
  const draw = (params) => new Sampler({ seed: 9, ...params }, VOCAB).sample(row());
  const pairs = draw({ logit_bias: [[5, 100], [6, -Infinity]] });
  assert.equal(pairs, 5);
  assert.equal(draw({ logit_bias: new Map([[5, 100]]) }), 5);
  assert.equal(draw({ logit_bias: { 5: 100 } }), 5);
  assert.equal(draw({ allowed_ids: new Uint32Array([77]) }), 77);
  assert.equal(draw({ allowed_ids: [77], mirostat: null, logprobs: undefined }), 77);
  assert.equal(draw({ top_p: 1, top_k: 0, order: "top_k,top_p" }), draw({}));
});

test("every number is held to its range, is none of another type, and is absent as null", () => {
  // The ends of the range of keys' numbers.
  for (const number of [0, 2 ** 32 - 1]) gumball.add_watermark_keys(`${number} 000102030405060708090a0b0c0d0e0f`);
  const ranged = gumball.parameters().filter(({ range }) => range);
  assert.ok(ranged.length >= 20 && ranged.every(({ about, stage }) => about && stage));
  const make = (name, value) => () => {
    const [part, field] = name.split(".");
    const needed = part === "section" ? { close: [1] } : {};
    return new Sampler({ seed: 1, [part]: field ? { ...needed, [field]: value } : value }, VOCAB);
  };
  for (const { name, holds, is_open, range: [least, most] } of ranged) {
    const parameter = new RegExp(`^${name.split(".")[0]}`);
    const refused = (value) => assert.throws(make(name, value), (error) => error instanceof GumballError && parameter.test(error.parameter), `${name} ${value}`);
    for (const value of [least - 1, most * 2 + 1, NaN, Infinity, -Infinity, true, "1"]) refused(value);
    for (const value of [is_open ? 2 ** -100 : least, holds === "integer" ? Math.min(most, 2 ** 40) : most, null, undefined]) make(name, value)();
  }
  refuses(make("logit_bias", { 3: false }), { kind: "type", parameter: "logit_bias" });
  refuses(make("logit_bias", { 3: NaN }), { kind: "out_of_range", parameter: "logit_bias" });
  refuses(make("p_less", 1), { kind: "type", parameter: "p_less" });
  refuses(make("topp", 1), { kind: "unknown", value: "topp", message: /do you mean "top_p"/ });
});

test("a pool steps its sequences as samplers do", () => {
  const pool = new Pool(VOCAB, { slots: 4, kept: true });
  const params = [7, 8, 9].map((seed) => ({ temperature: 0.9, top_k: 20, seed }));
  const slots = params.map((one, request) => pool.admit(one, [request]));
  const samplers = params.map((one, request) => new Sampler(one, VOCAB, { prompt: [request] }));
  assert.equal(pool.length, 3);
  assert.equal(pool.vocab, VOCAB);
  for (let step = 0; step < 5; step++) {
    const logits = rows(3, 10 * step);
    const out = pool.step(logits, slots);
    const expected = samplers.map((sampler, request) => sampler.sample(logits.subarray(request * VOCAB, (request + 1) * VOCAB)));
    assert.deepEqual([...out.tokens], expected);
    assert.deepEqual(out.kept.map((kept) => kept.length), [20, 20, 20]);
  }
  assert.deepEqual(pool.output(slots[1]), samplers[1].output);
  assert.deepEqual(pool.state(slots[1]), samplers[1].state);
  const fork = pool.fork(slots[0], 1);
  const out = pool.step(rows(1, 99), [slots[0], fork, -1], { row_indices: [0, 0, 0] });
  assert.equal(out.tokens[1], samplers[0].fork(1).sample(row(99)));
  assert.equal(out.tokens[2], -1);
  pool.shorten([fork], [1]);
  pool.shorten([slots[0]], [1]);
  assert.deepEqual(pool.output(fork), pool.output(slots[0]));
  pool.push(fork, 3);
  pool.release(fork);
  assert.equal(pool.length, 3);
  refuses(() => pool.release(fork), { parameter: "slot" });
  refuses(() => pool.step(rows(2), [slots[0], slots[0]]), { parameter: "slots" });
  refuses(() => pool.step(rows(2), [slots[0]]), { kind: "length" });
  refuses(() => pool.step(row(), [9]), { parameter: "slots", value: "9 in row 0" });
});

test("masks, forced tokens and hooks come one a row", () => {
  const pool = new Pool(VOCAB, { slots: 2 });
  const slots = [pool.admit({ seed: 1 }), pool.admit({ seed: 2 })];
  const one = new Uint32Array(2);
  one[1] = 1;
  assert.deepEqual([...pool.step(rows(2), slots, { masks: [one, one] }).tokens], [32, 32]);
  const flat = new Int32Array([0, 1, 0, 1]);
  assert.deepEqual([...pool.step(rows(2), slots, { masks: flat }).tokens], [32, 32]);
  assert.equal(pool.step(rows(2), slots, { masks: flat, mask_present: [true, false], forced: [null, 9] }).tokens[1], 9);
  assert.deepEqual([...pool.step(rows(2), slots, { masks: [null, one], forced: [4, -1] }).tokens], [4, 32]);
  const steer = (logits) => void logits.fill(-Infinity).fill(0, 40, 41);
  assert.equal(pool.step(rows(2), slots, { hooks: [steer, null] }).tokens[0], 40);
  const before = slots.map((slot) => pool.state(slot));
  const broken = () => { throw new Error("mine"); };
  assert.throws(() => pool.step(rows(2), slots, { hooks: [steer, broken] }), /^Error: mine$/);
  assert.deepEqual(slots.map((slot) => pool.state(slot)), before);
  refuses(() => pool.step(rows(2), slots, { hooks: [steer] }), { kind: "length", parameter: "hooks" });
  refuses(() => pool.step(rows(2), slots, { masks: new Uint32Array(3) }), { kind: "length", parameter: "masks" });
  refuses(() => pool.step(rows(2), slots, { kind: "logit" }), { kind: "unknown", parameter: "kind" });
});

test("verified drafts are what decoding without drafts emits", () => {
  const params = { temperature: 0.9, seed: 3 };
  const plain = new Sampler(params, VOCAB);
  const expected = [1, 2, 3, 4].map((seed) => plain.sample(row(seed)));
  const pool = new Pool(VOCAB, { slots: 2 });
  const slot = pool.admit(params);
  const drafts = [[expected[0], expected[1], (expected[2] + 1) % VOCAB]];
  const out = pool.verify(rows(4), [slot], drafts);
  assert.deepEqual([...out.tokens[0]], expected.slice(0, 3));
  assert.deepEqual([...out.accepted], [2]);
  assert.deepEqual([...out.rows[0]], [0, 1, 2]);
  assert.deepEqual(out.places, [{ start: 0, end: 3 }]);
  assert.deepEqual([...pool.output(slot)], expected.slice(0, 3));

  // A tree: the first child is wrong, its sibling is right.
  const other = pool.admit(params);
  const tree = [[(expected[0] + 1) % VOCAB, expected[0]]];
  const walked = pool.verify(rows(3), [other], tree, { parents: [[-1, -1]] });
  assert.deepEqual([...walked.rows[0]], [0, 2]);
  assert.equal(walked.tokens[0][0], expected[0]);
  pool.shorten([other], [pool.output(other).length]);
  const linked = pool.verify(rows(3), [other], tree, { first_child: [[1, -1, -1]], next_sibling: [[-1, 2, -1]] });
  assert.deepEqual(linked.tokens, walked.tokens);
  pool.shorten([other], [pool.output(other).length]);
  const probs = new Float32Array(3 * VOCAB).fill(1 / VOCAB);
  const judged = pool.verify(rows(3), [other], [[7, 8]], { mode: "rejection", draft_probs: probs });
  assert.equal(judged.tokens[0].length, judged.accepted[0] + 1);
  refuses(() => pool.verify(rows(2), [other], [[7]], { mode: "fast" }), { kind: "unknown", parameter: "mode" });
  refuses(() => pool.verify(rows(2), [other], [[7]], { parents: [[3]] }), { parameter: "parents" });
  refuses(() => pool.verify(rows(2), [other], [[7]], { threshold_acc: 0.5 }), { parameter: "threshold_acc" });
  refuses(() => pool.verify(rows(3), [other], [[7]]), { kind: "length" });
});

test("drafts are drawn as the request would draw them", () => {
  const pool = new Pool(VOCAB, { slots: 1 });
  const slot = pool.admit({ temperature: 0.9, seed: 3 });
  const [id, next] = pool.draft(row(), [slot], { siblings: 2 });
  assert.equal(pool.output(slot).length, 0);
  const [ids, probs] = pool.draft(row(2), [slot], { paths: [[id]], probs: true });
  assert.equal(ids.length, 1);
  assert.equal(probs.length, VOCAB);
  assert.equal(pool.step(row(), [slot]).tokens[0], id);
  assert.notEqual(id, next);
  assert.equal(pool.step(row(2), [slot]).tokens[0], ids[0]);
});

test("a prompt is scored", () => {
  const pool = new Pool(VOCAB);
  const ids = [4, 5, 6];
  const out = pool.score(rows(2), { logprobs: { top_n: 2 } }, ids);
  assert.deepEqual([...out.tokens], [5, 6]);
  const selected = gumball.selected_logprobs(rows(2), VOCAB, [5, 6]);
  assert.deepEqual(out.logprobs, selected.logprobs);
  assert.equal(out.top_ids[0].length, 2);
  refuses(() => pool.score(rows(3), {}, ids), { kind: "length", parameter: "ids" });
});

test("operators write rows", () => {
  const sum = (list) => list.reduce((all, one) => all + one, 0);
  const probabilities = gumball.softmax(rows(2), VOCAB, { temperature: [1, 0] });
  assert.ok(Math.abs(sum(probabilities.subarray(0, VOCAB)) - 1) < 1e-5);
  assert.equal(Math.max(...probabilities.subarray(VOCAB)), 1);
  const count = (list) => list.filter((one) => one > 0).length;
  const probs = gumball.softmax(row(), VOCAB), kind = "probabilities";
  const kept = (filters) => count(gumball.probabilities(probs, VOCAB, { kind, ...filters }));
  assert.equal(kept({ top_k: 5 }), 5);
  assert.equal(kept({ top_k: null }), count(probs));
  assert.deepEqual(gumball.probabilities(probs, VOCAB, { kind, top_k: [5] }), gumball.probabilities(probs, VOCAB, { kind, top_k: 5 }));
  assert.ok(kept({ top_p: 0.5 }) < count(probs) && kept({ min_p: 0.5 }) >= 1 && kept({ top_k: 5, top_p: 0.5, order: "joint" }) <= 5);
  assert.ok(gumball.probabilities(bf16(probs), VOCAB, { kind, top_k: 5, dtype: "bfloat16" }) instanceof Uint16Array);
  const [masked, statuses] = gumball.mask_logits(row(), VOCAB, { params: { banned_ids: [1] }, top_k: 3, return_statuses: true });
  assert.equal(masked.filter((one) => one > -Infinity).length, 3);
  assert.deepEqual([...statuses], [0]);
  assert.equal(gumball.mask_logits(bf16(row()), VOCAB, { top_k: 4, dtype: "bfloat16" }).filter((word) => word !== 0xff80).length, 4);
  const nan = row();
  nan[3] = NaN;
  assert.equal(gumball.softmax(nan, VOCAB, { return_statuses: true })[1][0], Status.NAN);
  refuses(() => gumball.softmax(row(), 499), { kind: "length", parameter: "logits" });
  refuses(() => gumball.softmax(row(), VOCAB, { temperature: -1 }), { parameter: "temperature" });
  refuses(() => gumball.probabilities(row(), VOCAB, { top_k: [1, 2] }), { kind: "length", parameter: "top_k" });
});

test("operators draw what a pool draws", () => {
  const pool = new Pool(VOCAB, { slots: 1 });
  const expected = pool.step(row(), [pool.admit({ temperature: 0.8, top_p: 0.9, seed: 7 }, [1, 2])]).tokens[0];
  const drawn = gumball.sample(row(), VOCAB, { temperature: 0.8, top_p: 0.9, seed: 7, position: 2, draw: 0 });
  assert.deepEqual([...drawn], [expected]);
  const many = gumball.sample(rows(2), VOCAB, { n: 3, seed: [7, 8n], position: 2 });
  assert.equal(many.length, 6);
  const picked = gumball.sample(gumball.softmax(rows(2), VOCAB), VOCAB, { kind: "probabilities", indices: [1, 1, 0], seed: 1, position: 0 });
  assert.equal(picked.length, 3);
  refuses(() => gumball.sample(rows(2), VOCAB, { indices: [2] }), { parameter: "indices" });
  refuses(() => gumball.sample(rows(2), VOCAB, { indices: [1], n: 2 }), { parameter: "n" });
});

test("a seed of operators needs a position, and without both each call draws by fresh entropy", () => {
  const flat = new Float32Array(8 * VOCAB).fill(1 / VOCAB);
  const ids = Array.from({ length: 8 }, () => []);
  const sample = (options) => [...gumball.sample(flat, VOCAB, options)];
  const judge = (options) => gumball.judge(null, ids, flat, VOCAB, options).tokens.map((tokens) => tokens[0]);
  for (const draw of [sample, judge]) {
    for (const seed of [7, new Array(8).fill(7n)]) {
      refuses(() => draw({ seed }), { kind: "out_of_range", parameter: "position" });
      assert.deepEqual(draw({ seed, position: 3 }), draw({ seed, position: 3 }));
    }
    // Equal by chance with a probability of 1e-21.
    for (const options of [undefined, {}, { position: 3 }]) assert.notDeepEqual(draw(options), draw(options));
  }
});

test("operators judge chains and trees", () => {
  const target = gumball.softmax(rows(3), VOCAB);
  const draft = target.subarray(0, 2 * VOCAB);
  // The drafter is the target: all drafts are accepted.
  const chain = gumball.judge(draft, [[5, 6]], target, VOCAB, { seed: 1, position: 0 });
  assert.deepEqual([...chain.tokens[0].subarray(0, 2)], [5, 6]);
  assert.deepEqual([[...chain.accepted], [...chain.accepted_alone]], [[2], [2]]);
  const tree = gumball.judge(target, [[5, 6]], target, VOCAB, { seed: 1, position: 0, parents: [[-1, 0]], rule: "rejection" });
  assert.equal(tree.accepted_alone, null);
  assert.deepEqual([...tree.tokens[0]], [...chain.tokens[0]]);
  assert.deepEqual([...tree.rows[0]], [0, 1, 2]);
  refuses(() => gumball.judge(null, [[5], [5, 6]], target, VOCAB), { kind: "length" });
  refuses(() => gumball.judge(null, [[5, 6]], target, VOCAB, { rule: "best" }), { kind: "unknown" });
});

test("an inspection ends with the token that a sampler draws", () => {
  const params = { temperature: 0.9, top_k: 40, top_p: 0.9, seed: 11 };
  const expected = new Sampler(params, VOCAB, { prompt: [1, 2] }).sample(row());
  const trace = gumball.inspect(row(), params, { prompt: [1, 2], texts: (id) => `<${id}>` });
  assert.equal(trace.winner.id, expected);
  assert.equal(trace.winner.text, `<${expected}>`);
  assert.equal(trace.position, 2);
  assert.equal(trace.vocab, VOCAB);
  assert.equal(trace.filters.length, 2);
  const brief = gumball.inspect(row(), params, { prompt: [1, 2], texts: (id) => `<${id}>`, brief: true });
  assert.deepEqual(brief, { ...trace, race: null, radius: null, what_if: null });
  refuses(() => gumball.inspect(row(), params, { brief: 1 }), { parameter: "brief" });
  const page = gumball.inspect_html(row(), params, { prompt: [1, 2], context: { prompt: "Why <b>?", said: "Because" } });
  assert.match(page, /^<!doctype html>/);
  assert.ok(page.includes("Why &lt;b&gt;?") && page.trimEnd().endsWith("</html>"));
  refuses(() => gumball.inspect(row(), { min_p: 7 }), { parameter: "min_p" });
  assert.match(gumball.version(), /^\d+\.\d+\.\d+$/);
});

test("a forced token is emitted even where bans leave it no place", () => {
  const mask = new Uint32Array(16).fill(0xffffffff);
  mask[0] = ~2;
  const empty = new Float32Array(VOCAB).fill(-Infinity);
  for (const [logits, params, options] of [[row(), { banned_ids: [1] }, {}], [row(), {}, { mask }], [empty, {}, {}]]) {
    const trace = gumball.inspect(logits, params, { forced: 1, ...options });
    assert.equal(new Sampler(params, VOCAB).sample(logits, { forced: 1, ...options }), 1);
    assert.equal(trace.winner.id, 1);
    assert.equal(trace.winner.place, null);
    assert.ok(gumball.inspect_html(logits, params, { forced: 1, ...options }).includes("forced"));
  }
  assert.equal(gumball.inspect(row(), {}, { forced: 1 }).winner.id, 1);
  assert.equal(gumball.inspect(empty, {}).winner, null);
});

test("outputs that no memory holds are refused", () => {
  refuses(() => gumball.sample(row(), VOCAB, { n: 2 ** 30 }), { kind: "unavailable" });
  refuses(() => gumball.sample(rows(2), VOCAB, { n: 2 ** 31 }), { kind: "unavailable" });
  refuses(() => gumball.sample(rows(2), VOCAB, { n: 2 ** 32 - 1, seed: [1, 2], position: 0 }), { kind: "unavailable" });
  assert.equal(gumball.sample(row(), VOCAB, { n: 2 }).length, 2);
});

test("only plain objects have named fields", () => {
  class Params {}
  for (const other of [new Map([["top_k", 1]]), Promise.resolve({}), new Date(), new Params(), Object.create({ top_k: 1 }), () => 1]) {
    refuses(() => new Sampler(other, VOCAB), { kind: "type", parameter: "params" });
    refuses(() => new Sampler({}, VOCAB, other), { kind: "type", parameter: "options" });
  }
  refuses(() => new Sampler({ dry: new Map() }, VOCAB), { kind: "type", parameter: "dry" });
  const bare = Object.assign(Object.create(null), { top_k: 1, seed: 3 });
  assert.equal(new Sampler(bare, VOCAB).seed, 3n);
  assert.equal(new Sampler(vm.runInNewContext("({ top_k: 1, seed: 4 })"), VOCAB).seed, 4n);
  const mine = { get seed() { throw new RangeError("mine"); } };
  assert.throws(() => new Sampler(mine, VOCAB), /^RangeError: mine$/);
  const forced = { get forced() { throw new RangeError("mine"); } };
  assert.throws(() => new Sampler({}, VOCAB).sample(row(), forced), /^RangeError: mine$/);
});

test("nothing is silently left out", () => {
  const pool = new Pool(VOCAB, { slots: 2 });
  const slots = [pool.admit({ seed: 1, temperature: 0 }), pool.admit({ seed: 2, temperature: 0 })];
  const one = new Uint32Array([0, 1]);
  const free = new Sampler({ temperature: 0 }, VOCAB).sample(row(1));
  assert.deepEqual([...pool.step(rows(2), slots, { masks: [null, one], mask_present: [true, true] }).tokens], [free, 32]);
  refuses(() => pool.step(rows(2), slots, { masks: [null, one], mask_present: [true] }), { kind: "length", parameter: "mask_present" });
  const sampler = new Sampler({}, VOCAB);
  for (const on of ["yes", undefined, 1]) refuses(() => sampler.collect_kept(on), { kind: "type", parameter: "on" });
  refuses(() => gumball.inspect(row(), {}, { context: { prompt: "a" } }), { kind: "unknown", value: "context" });
  refuses(() => new Sampler({ top_p: "inf" }, VOCAB), { kind: "type", parameter: "top_p" });
  refuses(() => new Sampler({ top_p: "0.5" }, VOCAB), { kind: "type", parameter: "top_p" });
  refuses(() => new Sampler({ logit_bias: { 5: "inf" } }, VOCAB), { kind: "type", parameter: "logit_bias" });
});

test("ragged trees are refused and not shifted", () => {
  const target = gumball.softmax(rows(6), VOCAB);
  const tree = (parents) => () => gumball.judge(null, [[5, 6], [7, 8]], target, VOCAB, { parents, rule: "threshold", seed: 1, position: 0 });
  refuses(tree([[-1, 0, 1], [-1]]), { kind: "length", parameter: "parents" });
  refuses(tree([[-1, 0]]), { kind: "length", parameter: "parents" });
  assert.equal(tree([[-1, 0], [-1, 0]])().tokens.length, 2);
  const pool = new Pool(VOCAB, { slots: 2 });
  const slots = [pool.admit({ seed: 1 }), pool.admit({ seed: 2 })];
  const links = (first_child, next_sibling) => () => pool.verify(rows(4), slots, [[5], [6]], { first_child, next_sibling });
  refuses(links([[1, -1, 1], [-1]], [[-1, -1], [-1, -1]]), { kind: "length", parameter: "first_child" });
  refuses(links([[1, -1], [1, -1]], [[-1, -1, -1], [-1]]), { kind: "length", parameter: "next_sibling" });
  assert.equal(links([[1, -1], [1, -1]], [[-1, -1], [-1, -1]])().tokens.length, 2);
});

test("rows that 32 bits cannot count do not wrap", () => {
  const pool = new Pool(2 ** 20, { slots: 64 });
  const slots = Array.from({ length: 64 }, () => pool.admit({ seed: 1 }));
  const drafts = slots.map(() => new Int32Array(63));
  refuses(() => pool.verify(new Float32Array(0), slots, drafts, { mode: "rejection", draft_probs: new Float32Array(0) }), { kind: "length" });
});

test("a row whose hook throws leaves no logprobs and no kept set", () => {
  const sampler = new Sampler({ logprobs: {}, top_k: 3, seed: 1 }, VOCAB);
  sampler.collect_kept(true);
  sampler.sample(row());
  assert.ok(sampler.logprobs && sampler.kept.length === 3);
  assert.throws(() => sampler.sample(row(2), { hook: () => { throw new Error("mine"); } }), /mine/);
  assert.equal(sampler.logprobs, undefined);
  assert.equal(sampler.kept.length, 0);
  assert.equal(sampler.status, 0);
  sampler.sample(row(2));
  assert.ok(sampler.logprobs && sampler.kept.length === 3);
});

test("radii are those that a pool reports", () => {
  const params = { temperature: 0.8, top_p: 0.9, seed: 5, logprobs: { mode: ["raw", "radius"] } };
  const pool = new Pool(VOCAB, { slots: 3 });
  const slots = [0, 1, 2].map(() => pool.admit(params));
  const { second_logprobs } = pool.step(rows(3, 40), slots);
  const radii = gumball.radii(rows(3, 40), VOCAB, { temperature: 0.8, top_p: 0.9, seed: 5, position: 0, draw: [0, 0, 0] });
  assert.ok(radii.every((radius) => radius > 0));
  assert.deepEqual(radii, second_logprobs);
  refuses(() => gumball.radii(row(), VOCAB, { position: 0 }), { parameter: "seed", value: "left out" });
  refuses(() => gumball.radii(row(), VOCAB, { params: { typical_p: 0.5 }, seed: 1, position: 0 }), { kind: "conflict" });
});

test("an error names the argument that it speaks of", () => {
  const draw = (options) => () => gumball.sample(rows(2), VOCAB, options);
  refuses(draw({ seed: [1], position: 0 }), { kind: "length", parameter: "seed" });
  refuses(draw({ position: [1] }), { kind: "length", parameter: "position" });
  refuses(draw({ draw: [1] }), { kind: "length", parameter: "draw" });
  const pool = new Pool(VOCAB);
  const slot = pool.admit({});
  refuses(() => pool.step(row(), [slot], { row_indices: [3] }), { parameter: "row_indices" });
  refuses(() => pool.step(row(), [slot], { hooks: [3] }), { kind: "type", parameter: "hooks" });
  refuses(() => pool.step(row(), [slot], { masks: ["all"] }), { kind: "type", parameter: "masks" });
  refuses(() => pool.step(row(), [slot], { masks: [new Uint32Array(VOCAB)] }), { parameter: "masks" });
});
