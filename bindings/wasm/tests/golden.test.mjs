// Golden draws in Node.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import * as gumball from "../pkg/node.js";
import { check } from "./golden.mjs";

const conformance = new URL("../../../proof/conformance/", import.meta.url);
const read = (name) => readFileSync(new URL(name, conformance));

test("samplers and pools draw the pinned tokens", () => {
  const pinned = { ...JSON.parse(read("golden/generated.json")), ...JSON.parse(read("golden/smollm2.json")) };
  const bytes = new Uint8Array(read("rows/smollm2.bf16"));
  assert.ok(check(gumball, pinned, new Uint16Array(bytes.buffer)) > 0);
});
