// Runs WebAssembly in headless browsers: `node ci/lib/wasm-browser.mjs [BROWSER..] JOB..`, in Chromium if none of chromium, firefox and webkit is
// named, one after the other, where a job is `golden`, the golden draws and the golden marks by the npm package; a FILE.wasm below the
// repository's root, whose main function is called as by ci/lib/wasm-call.mjs; or `generate:JSON`, a text by wllama and the package, written as
// JSON (ci/lib/wasm-worker.mjs).
// A server on this machine alone hands out the repository's files; a worker in the page does the jobs and says what came out.
// Exits with 77 where a browser is not there. CHROMIUM and FIREFOX name other ones. LIMIT_S (1200): how long a browser may take for all jobs.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { relative, resolve } from "node:path";
import { BROWSERS } from "../../apps/explorer/tests/drivers.mjs";

const root = resolve(import.meta.dirname, "../..");
const named = process.argv.slice(2).filter((name) => name in BROWSERS);
const jobs = process.argv.slice(2).filter((name) => !(name in BROWSERS)).map((job) => (job.endsWith(".wasm") ? relative(root, resolve(job)) : job));
if (jobs.length === 0) {
  console.error("usage: node ci/lib/wasm-browser.mjs [chromium|firefox|webkit..] golden|FILE.wasm|generate:JSON..");
  process.exit(64);
}

const TYPES = { html: "text/html", js: "text/javascript", mjs: "text/javascript", json: "application/json", wasm: "application/wasm" };
const PAGE = `<!doctype html><script type="module">
const worker = new Worker("/ci/lib/wasm-worker.mjs", { type: "module" });
const say = (body) => fetch("/say", { method: "POST", body: JSON.stringify(body) });
worker.onmessage = ({ data }) => say(data);
worker.onerror = (event) => say({ failed: event.message || "the worker did not start" });
worker.postMessage(${JSON.stringify(jobs)});
</script>`;

/** What is called when the page has done its jobs, or cannot. @type {{ resolve(): void, reject(error: Error): void }} */
let end;
const server = createServer((request, response) => {
  const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
  if (request.method === "POST" && path === "/say") {
    let body = "";
    request.on("data", (part) => (body += part));
    request.on("end", () => {
      response.end();
      const { line, failed, done } = JSON.parse(body);
      if (line) console.log(line);
      if (failed) end.reject(new Error(failed));
      if (done) end.resolve();
    });
    return;
  }
  if (path === "/") return void response.setHeader("content-type", TYPES.html).end(PAGE);
  const file = resolve(root, `.${path}`);
  try {
    if (relative(root, file).startsWith("..")) throw new Error("outside");
    const bytes = readFileSync(file);
    response.setHeader("content-type", TYPES[file.split(".").at(-1)] ?? "application/octet-stream").end(bytes);
  } catch {
    response.writeHead(404).end();
  }
});

await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const address = `http://127.0.0.1:${server.address().port}/`;
const limit = Number(process.env.LIMIT_S ?? 1200);
for (const name of named.length ? named : ["chromium"]) {
  const [start, packages] = BROWSERS[name];
  const driver = await start();
  if (!driver) {
    console.error(`ci/lib/wasm-browser.mjs: ${name} is not there (Debian's ${packages})`);
    process.exitCode = 77;
    break;
  }
  const timer = setTimeout(() => end.reject(new Error(`${name} has not done its jobs in ${limit} s`)), limit * 1000);
  try {
    const done = new Promise((resolve, reject) => (end = { resolve, reject }));
    await Promise.all([driver.open(address), done]);
  } catch (error) {
    console.error(error.message);
    process.exitCode = 1;
  }
  clearTimeout(timer);
  driver.close();
  if (process.exitCode) break;
}
server.close();
server.closeAllConnections();
