// Golden draws in Node.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import * as gumball from "../pkg/node.js";
import * as alone from "../pkg/sampler/node.js";
import { check, checkMarks } from "./golden.mjs";

const conformance = new URL("../../../proof/conformance/", import.meta.url);
const read = (name) => readFileSync(new URL(name, conformance));

const pinned = { ...JSON.parse(read("golden/generated.json")), ...JSON.parse(read("golden/smollm2.json")) };
const recorded = new Uint16Array(new Uint8Array(read("rows/smollm2.bf16")).buffer);

test("samplers and pools draw the pinned tokens", () => assert.ok(check(gumball, pinned, recorded) > 0));

test("no error shows a key that is given in the place of its number", () => {
  for (const key of ["00112233445566778899aabbccddeeff", 81985529216486895n, 2 ** 60]) {
    for (const call of [
      () => new gumball.Sampler({ watermark: { key } }, 8),
      () => new gumball.Sampler({ watermark: key }, 8),
      () => new gumball.Pool(8, { slots: 1, watermark: { key } }),
      () => gumball.detect([1, 2], { keys: [key] }),
      () => gumball.detect([1, 2], { keys: key }),
      () => gumball.detect([1, 2], { scheme: `sglang=${key}` }),
      () => gumball.find_marked([1, 2], { watermark: { key } }),
    ]) {
      assert.throws(call, (error) => error.name === "GumballError" && ![error.message, error.value].some((it) => it.includes(`${key}`)), `${call}`);
    }
  }
});

test("keys of watermarks are taken, and nothing shows them", () => {
  assert.equal(gumball.add_watermark_keys("3 00112233445566778899aabbccddeeff"), 1);
  assert.throws(() => gumball.add_watermark_keys("3 ffffffffffffffffffffffffffffffff"), (error) => error.parameter === "number" && !error.message.includes("ffff"));
  const sampler = new gumball.Sampler({ watermark: { key: 3, context: 1, scope: "both" }, seed: 1 }, 50, { prompt: [5] });
  const other = new gumball.Sampler({ watermark: { key: 3, context: 1, scope: "both" }, seed: 2 }, 50, { prompt: [5] });
  const row = new Float32Array(50);
  assert.equal(sampler.sample(row), other.sample(row));
  const params = { watermark: { key: 3, context: 1, scope: "both" }, seed: 2 };
  assert.throws(() => new alone.Sampler(params, 50), (error) => error.parameter === "watermark.key");
  assert.equal(alone.add_watermark_keys("3 00112233445566778899aabbccddeeff"), 1);
  assert.equal(new alone.Sampler(params, 50, { prompt: [5] }).sample(row), new gumball.Sampler(params, 50, { prompt: [5] }).sample(row));
});

test("a pool marks requests that name no mark", () => {
  const watermark = { key: 3, context: 1, scope: "both" };
  const pool = new gumball.Pool(50, { slots: 3, watermark });
  const slots = [undefined, false, watermark].map((own) => pool.admit({ watermark: own, seed: 1 }, [5]));
  const { statuses, tokens } = pool.step(new Float32Array(150), slots);
  assert.deepEqual([...statuses], [512, 0, 512]);
  assert.equal(tokens[0], tokens[2]);
  const enforcing = new gumball.Pool(50, { slots: 1, watermark, enforce_all: true });
  assert.throws(() => enforcing.admit({ watermark: false }), (error) => error.parameter === "watermark");
  assert.throws(() => new gumball.Pool(50, { enforce_all: true }), (error) => error.parameter === "enforce_all");
});

test("marked texts are found, other engines' too", () => {
  gumball.add_watermark_keys("4 0x0123456789abcdef\n5 00112233445566778899aabbccddeefe");
  const sampler = new gumball.Sampler({ watermark: { key: 5 }, seed: 1 }, 500);
  const ids = Array.from({ length: 200 }, () => sampler.sample(new Float32Array(500)));
  const found = gumball.detect(ids, { watermark: { key: 5 }, keys: [4, 5] });
  assert.ok(found.key === 5 && found.p_value < 1e-20 && found.tokens + found.skipped === 200, JSON.stringify(found));
  const other = Uint32Array.from({ length: 60 }, (_, i) => ((i * i * 31) % 50));
  const { tokens, score } = gumball.detect(other.slice(2), { watermark: { key: 4, context: 3 }, prompt: other.slice(0, 2), scheme: "sglang" });
  assert.ok(tokens === 51 && Math.abs(score - 36.443086552912415) < 1e-9);
  gumball.add_watermark_keys("6 0xfedcba9876543210");
  const dual = gumball.detect(other.slice(2), { watermark: { key: 4, context: 3 }, prompt: other.slice(0, 2), scheme: "sglang=6" });
  assert.ok(dual.tokens === 51 && Math.abs(dual.score - 34.33411158495598) < 1e-9);
  assert.throws(() => gumball.detect(ids, { watermark: { key: 5 }, scheme: "vllm" }), (error) => error.parameter === "keys");
  assert.throws(() => gumball.detect(ids, { scheme: "synthid" }), (error) => error.parameter === "scheme");
});

test("scores, p-values and marked parts of texts are those of the crate, bit for bit", () => {
  assert.ok(checkMarks(gumball, JSON.parse(read("golden/marks.json"))) > 3);
  for (const [option, value] of [["length", 0], ["length", -1], ["alpha", 1], ["alpha", NaN], ["alpha", "0.1"], ["keys", [5]]]) {
    const refused = (error) => error.parameter === (option === "keys" ? "options" : option) && error instanceof gumball.GumballError;
    assert.throws(() => gumball.find_marked([1, 2], { watermark: { key: 5 }, [option]: value }), refused, `${option} ${value}`);
  }
});

test("prompts and samples have the pinned seeds", () => {
  for (const pinned of JSON.parse(read("golden/rollout_seeds.json"))) {
    const seed = gumball.prompt_seed(BigInt(pinned.run), BigInt(pinned.prompt), pinned.turn);
    assert.deepEqual([seed, gumball.sample_seed(seed, pinned.sample)], [BigInt(pinned.prompt_seed), BigInt(pinned.sample_seed)]);
  }
  assert.equal(gumball.prompt_seed(7, 41), gumball.prompt_seed(7n, 41n, 0));
  assert.throws(() => gumball.prompt_seed(-1, 0), (error) => error.parameter === "run");
});

test("parameters are read from JSON and written as every language does", () => {
  const cases = JSON.parse(read("golden/params_json.json"));
  const written = (text) => gumball.params_to_json(gumball.params_from_json(text));
  assert.equal(gumball.params_to_json({}), cases.neutral);
  for (const [one, other] of cases.same) assert.deepEqual([written(one), written(written(one))], [written(other), written(other)]);
  for (const [text, part] of cases.written) assert.ok(written(text).includes(part), text);
  for (const [text, said] of cases.refused) {
    assert.throws(() => gumball.params_from_json(text), (error) => error.kind === "json" && error.message.includes(said), text);
  }
  const bans = gumball.params_from_json('{"seed": 18446744073709551615, "logit_bias": {"5": "-inf"}}');
  assert.deepEqual([bans.seed, bans.logit_bias], [18446744073709551615n, [[5, -Infinity]]]);
  assert.throws(() => gumball.params_to_json({ logit_bias: { 5: NaN } }), (error) => error.kind === "json" && /logit_bias is NaN/.test(error.message));
});

test("the sampler alone draws them too, and is all that its module has", () => {
  assert.ok(check(alone, pinned, recorded) > 0);
  assert.deepEqual(Object.keys(alone).sort(), ["GumballError", "Sampler", "Status", "init", "initSync", "start", "version"]);
  assert.throws(() => new alone.Sampler({}, 5, { route: "oracle" }), (error) => error.kind === "unknown" && error.parameter === "route");
  assert.throws(() => new alone.Sampler({ min_p: 2 }, 5), (error) => error instanceof alone.GumballError);
});
