// Does the jobs of ci/wasm-browser.mjs in a browser's worker, one after the other, and says what came out of each.
import { call } from "./wasm-call.mjs";

async function fetched(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response;
}

async function golden() {
  const gumball = await import("../bindings/wasm/pkg/index.js");
  const { check } = await import("../bindings/wasm/tests/golden.mjs");
  await gumball.init();
  const [generated, recorded] = await Promise.all(
    ["generated", "smollm2"].map(async (name) => (await fetched(`/conformance/golden/${name}.json`)).json()),
  );
  const rows = await (await fetched("/conformance/rows/smollm2.bf16")).arrayBuffer();
  const start = performance.now();
  const drawn = check(gumball, { ...generated, ...recorded }, new Uint16Array(rows));
  return `golden: ${drawn} tokens are the pinned ones, in ${((performance.now() - start) / 1000).toFixed(1)} s`;
}

async function module(path) {
  const seconds = await call(await (await fetched(`/${path}`)).arrayBuffer());
  return `${path.split("/").at(-1)}: passed in ${seconds.toFixed(1)} s`;
}

self.onmessage = async ({ data: jobs }) => {
  try {
    const { brands } = self.navigator.userAgentData ?? {};
    self.postMessage({ line: brands?.length ? brands.map(({ brand, version }) => `${brand} ${version}`).join(", ") : self.navigator.userAgent });
    for (const job of jobs) self.postMessage({ line: await (job === "golden" ? golden() : module(job)) });
    self.postMessage({ done: true });
  } catch (error) {
    self.postMessage({ failed: `${error.message}\n${error.stack}` });
  }
};
