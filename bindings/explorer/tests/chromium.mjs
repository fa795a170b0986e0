// How does a test speak with a browser? By Chromium's own protocol over a WebSocket, of which Node or the browser needs nothing more.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Starts a browser without a window and returns what can be asked of its one page; undefined if there is no browser. */
export async function browser() {
  const profile = mkdtempSync(join(tmpdir(), "gumball-explorer-"));
  const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe", `--user-data-dir=${profile}`, "about:blank"];
  const names = process.env.CHROMIUM ? [process.env.CHROMIUM] : ["chromium", "chromium-headless-shell", "google-chrome"];
  const child = await started(names, flags);
  if (!child) return undefined;
  const [into, from] = [child.stdio[3], child.stdio[4]];
  const open = new Map();
  const events = [];
  let [last, rest] = [0, ""];
  from.setEncoding("utf8").on("data", (part) => {
    const messages = (rest + part).split("\0");
    rest = messages.pop();
    for (const message of messages.map((text) => JSON.parse(text))) {
      if (message.id === undefined) events.push(message);
      else if (message.error) open.get(message.id).reject(new Error(message.error.message));
      else open.get(message.id).resolve(message.result);
    }
  });
  const call = (method, params = {}, sessionId) =>
    new Promise((resolve, reject) => {
      open.set(++last, { resolve, reject });
      into.write(`${JSON.stringify({ id: last, method, params, sessionId })}\0`);
    });
  const { targetInfos } = await call("Target.getTargets");
  const { sessionId } = await call("Target.attachToTarget", { targetId: targetInfos.find((target) => target.type === "page").targetId, flatten: true });
  const ask = (method, params) => call(method, params, sessionId);
  await Promise.all(["Page.enable", "Runtime.enable", "Log.enable"].map((method) => ask(method)));
  const close = () => {
    child.kill("SIGKILL");
    setTimeout(() => rmSync(profile, { recursive: true, force: true, maxRetries: 5 }), 300);
  };
  return { ask, events, close };
}

/** Starts the first of the programs that is there. */
async function started(names, flags) {
  for (const name of names) {
    const child = spawn(name, flags, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    if (await new Promise((resolve) => child.once("spawn", () => resolve(true)).once("error", () => resolve(false)))) return child;
  }
  return undefined;
}
