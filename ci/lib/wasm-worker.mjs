// Does the jobs of ci/lib/wasm-browser.mjs in a browser's worker, one after the other, and says what came out of each.
import { call } from "./wasm-call.mjs";

async function fetched(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response;
}

async function golden() {
  const gumball = await import("../../bindings/wasm/pkg/index.js");
  const { check, checkMarks } = await import("../../bindings/wasm/tests/golden.mjs");
  await gumball.init();
  const [generated, recorded, marks] = await Promise.all(
    ["generated", "smollm2", "marks"].map(async (name) => (await fetched(`/proof/conformance/golden/${name}.json`)).json()),
  );
  const rows = await (await fetched("/proof/conformance/rows/smollm2.bf16")).arrayBuffer();
  const start = performance.now();
  const drawn = check(gumball, { ...generated, ...recorded }, new Uint16Array(rows));
  const texts = checkMarks(gumball, marks);
  return `golden: ${drawn} tokens and the evidence of ${texts} texts are the pinned ones, in ${((performance.now() - start) / 1000).toFixed(1)} s`;
}

/** Generates by wllama and the package: `generate:` and JSON with the model's path, the question, and options of generate. */
async function generated(job) {
  const { model, question, ...options } = JSON.parse(job.slice("generate:".length));
  const gumball = await import("../../bindings/wasm/pkg/index.js");
  const { Wllama } = await import("../../target/wasm-npm/node_modules/@wllama/wllama/esm/index.js");
  const { generate } = await import("../../bindings/wasm/examples/wllama/generate.mjs");
  await gumball.init();
  // wllama asks the page's document where it lies; a worker has none.
  globalThis.document ??= { baseURI: self.location.href };
  const folder = new URL("../../target/wasm-npm/node_modules/@wllama/wllama/esm/", import.meta.url);
  const silent = { debug() {}, log() {}, warn() {}, error: console.error };
  const wllama = new Wllama({ "single-thread/wllama.wasm": new URL("single-thread/wllama.wasm", folder).href }, { logger: silent });
  await wllama.loadModel([await (await fetched(`/${model}`)).blob()], { n_ctx: 1024, cache_type_k: "f32", cache_type_v: "f32" });
  const made = await generate(wllama, gumball.Sampler, question, options);
  await wllama.exit();
  return JSON.stringify(made);
}

async function module(path) {
  const seconds = await call(await (await fetched(`/${path}`)).arrayBuffer());
  return `${path.split("/").at(-1)}: passed in ${seconds.toFixed(1)} s`;
}

function done(job) {
  if (job === "golden") return golden();
  return job.startsWith("generate:") ? generated(job) : module(job);
}

self.onmessage = async ({ data: jobs }) => {
  try {
    const { brands } = self.navigator.userAgentData ?? {};
    self.postMessage({ line: brands?.length ? brands.map(({ brand, version }) => `${brand} ${version}`).join(", ") : self.navigator.userAgent });
    for (const job of jobs) self.postMessage({ line: await done(job) });
    self.postMessage({ done: true });
  } catch (error) {
    self.postMessage({ failed: `${error.message}\n${error.stack}` });
  }
};
