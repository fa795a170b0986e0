// Times a draw from a row of 151936 logits through the npm package, in Node: `node proof/bench/wasm/draw.mjs [PACKAGE]`. PACKAGE is the folder that
// ci/wasm package made, bindings/wasm/pkg if none is named. Prints a table; each figure is the median of 31 turns of 8 draws each, in
// microseconds, every turn a new row, all settings of a turn one after the other.
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { modelLike } from "../../../bindings/wasm/tests/rows.mjs";

const folder = resolve(process.argv[2] ?? new URL("../../../bindings/wasm/pkg", import.meta.url).pathname);
const { Sampler, softmax } = await import(pathToFileURL(`${folder}/node.js`));

const VOCAB = 151_936;
const TURNS = 31;
const DRAWS = 8;
const rows = Array.from({ length: 4 }, (_, seed) => modelLike(VOCAB, seed));
const SETTINGS = {
  greedy: { temperature: 0 },
  "T 0.8": { temperature: 0.8 },
  "T 0.8, top-k 50, top-p 0.9": { temperature: 0.8, top_k: 50, top_p: 0.9 },
  "T 0.8, top-p 0.9": { temperature: 0.8, top_p: 0.9 },
  "T 0.8, min-p 0.05": { temperature: 0.8, min_p: 0.05 },
};

function largest(row) {
  let [best, id] = [-Infinity, 0];
  for (let i = 0; i < row.length; i++) if (row[i] > best) [best, id] = [row[i], i];
  return id;
}

// What each draw costs besides: the copy into the module; and what a loop of JavaScript takes for the largest logit.
const target = new Float32Array(VOCAB);
const works = {
  "copy of the row": (row) => target.set(row),
  "largest logit, a loop of JavaScript": largest,
  "softmax, the operator": (row) => softmax(row, VOCAB),
};
for (const [name, params] of Object.entries(SETTINGS)) {
  const sampler = new Sampler({ ...params, seed: 1 }, VOCAB);
  works[name] = (row) => {
    sampler.sample(row);
    sampler.shorten(sampler.output.length);
  };
}

const times = Object.fromEntries(Object.keys(works).map((name) => [name, []]));
for (let turn = -3; turn < TURNS; turn++) {
  const row = rows[(turn + 4) % rows.length];
  for (const [name, work] of Object.entries(works)) {
    const start = performance.now();
    for (let draw = 0; draw < DRAWS; draw++) work(row);
    if (turn >= 0) times[name].push(((performance.now() - start) * 1000) / DRAWS);
  }
}

const median = (list) => list.toSorted((a, b) => a - b)[list.length >> 1];
const us = (name) => median(times[name]).toFixed(0);
console.log(`| setting | ${new Sampler({}, 1).level}, us |\n| --- | ---: |`);
for (const name of Object.keys(SETTINGS)) console.log(`| ${name} | ${us(name)} |`);
console.log();
for (const name of Object.keys(works).filter((name) => !(name in SETTINGS))) console.log(`${name}: ${us(name)} us`);
