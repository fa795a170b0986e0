// Golden draws in Node.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import * as gumball from "../pkg/node.js";
import * as alone from "../pkg/sampler/node.js";
import { check } from "./golden.mjs";

const conformance = new URL("../../../proof/conformance/", import.meta.url);
const read = (name) => readFileSync(new URL(name, conformance));

const pinned = { ...JSON.parse(read("golden/generated.json")), ...JSON.parse(read("golden/smollm2.json")) };
const recorded = new Uint16Array(new Uint8Array(read("rows/smollm2.bf16")).buffer);

test("samplers and pools draw the pinned tokens", () => assert.ok(check(gumball, pinned, recorded) > 0));

test("prompts and samples have the pinned seeds", () => {
  for (const pinned of JSON.parse(read("golden/rollout_seeds.json"))) {
    const seed = gumball.prompt_seed(BigInt(pinned.run), BigInt(pinned.prompt), pinned.turn);
    assert.deepEqual([seed, gumball.sample_seed(seed, pinned.sample)], [BigInt(pinned.prompt_seed), BigInt(pinned.sample_seed)]);
  }
  assert.equal(gumball.prompt_seed(7, 41), gumball.prompt_seed(7n, 41n, 0));
  assert.throws(() => gumball.prompt_seed(-1, 0), (error) => error.parameter === "run");
});

test("the sampler alone draws them too, and is all that its module has", () => {
  assert.ok(check(alone, pinned, recorded) > 0);
  assert.deepEqual(Object.keys(alone).sort(), ["GumballError", "Sampler", "Status", "init", "initSync", "start", "version"]);
  assert.throws(() => new alone.Sampler({}, 5, { route: "oracle" }), (error) => error.kind === "unknown" && error.parameter === "route");
  assert.throws(() => new alone.Sampler({ min_p: 2 }, 5), (error) => error instanceof alone.GumballError);
});
