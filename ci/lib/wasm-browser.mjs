// Runs WebAssembly in a headless browser, Debian's Chromium: `node ci/lib/wasm-browser.mjs JOB..`, where a job is `golden`, the golden draws
// by the npm package; a FILE.wasm below the repository's root, whose main function is called as by ci/lib/wasm-call.mjs; or `generate:JSON`,
// a text by wllama and the package, written as JSON (ci/lib/wasm-worker.mjs).
// A server on this machine alone hands out the repository's files; a worker in the page does the jobs and says what came out.
// Exits with 77 where there is no browser. CHROMIUM names another one. LIMIT_S (1200): how long all jobs may take.
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join, relative, resolve } from "node:path";

const root = resolve(import.meta.dirname, "../..");
const jobs = process.argv.slice(2).map((job) => (job.endsWith(".wasm") ? relative(root, resolve(job)) : job));
if (jobs.length === 0) {
  console.error("usage: node ci/lib/wasm-browser.mjs golden|FILE.wasm|generate:JSON..");
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

const profile = mkdtempSync(join(tmpdir(), "gumball-browser-"));
let browser;
function end(status, message) {
  if (message) console.error(message);
  browser?.kill("SIGKILL");
  setTimeout(() => {
    rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
    process.exit(status);
  }, 300);
}

const server = createServer((request, response) => {
  const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
  if (request.method === "POST" && path === "/say") {
    let body = "";
    request.on("data", (part) => (body += part));
    request.on("end", () => {
      response.end();
      const { line, failed, done } = JSON.parse(body);
      if (line) console.log(line);
      if (failed) end(1, failed);
      if (done) end(0);
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

server.listen(0, "127.0.0.1", () => {
  const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", `--user-data-dir=${profile}`];
  const address = `http://127.0.0.1:${server.address().port}/`;
  const names = process.env.CHROMIUM ? [process.env.CHROMIUM] : ["chromium", "chromium-headless-shell", "google-chrome"];
  const start = () => {
    const name = names.shift();
    if (!name) return end(77, "ci/lib/wasm-browser.mjs: no browser (Debian's package chromium)");
    browser = spawn(name, [...flags, address], { stdio: ["ignore", "ignore", "pipe"] });
    let said = "";
    browser.stderr.on("data", (part) => (said = (said + part).slice(-2000)));
    browser.on("error", start);
    browser.on("exit", (status) => status !== null && end(1, `the browser ended with ${status}:\n${said}`));
  };
  start();
});
const limit = Number(process.env.LIMIT_S ?? 1200);
setTimeout(() => end(1, `the browser has said nothing for ${limit} s`), limit * 1000).unref();
