// How does a test speak with a browser? With Chromium by its own protocol over a pipe, with Firefox by Marionette over a socket, with WebKit by
// WebDriver over HTTP: of which Node or the browser needs nothing more. Each starts without a window, and undefined says that it is not there.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

/**
 * @typedef {{open(url: string): Promise<unknown>, evaluate(expression: string): Promise<any>, press(key: string): Promise<unknown>,
 *   size(width: number, height: number): Promise<number>, scheme?(name: string): Promise<unknown>, picture(whole: boolean): Promise<string>,
 *   errors(): string[], close(): void}} Driver
 * `size` returns the width that the page has then; `errors` are those that the browser has logged, as far as it tells.
 */

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const ARROWS = { ArrowRight: "\ue014" };

/** Starts the first of the programs that is there. */
async function started(names, flags, options = {}) {
  for (const name of names) {
    const child = spawn(name, flags, { stdio: "ignore", ...options });
    if (await new Promise((resolve) => child.once("spawn", () => resolve(true)).once("error", () => resolve(false)))) return child;
  }
  return undefined;
}

function folder() {
  const path = mkdtempSync(join(tmpdir(), "gumball-explorer-"));
  return { path, remove: () => setTimeout(() => rmSync(path, { recursive: true, force: true, maxRetries: 5 }), 500) };
}

const freePort = () => new Promise((resolve) => {
  const server = createServer().listen(0, "127.0.0.1", () => {
    const { port } = server.address();
    server.close(() => resolve(port));
  });
});

/** Answers to questions that have numbers. */
function asking(send) {
  const open = new Map();
  let last = 0;
  return {
    ask: (what, params) => new Promise((resolve, reject) => {
      open.set(++last, { resolve, reject });
      send(last, what, params);
    }),
    answer(id, error, result) {
      if (error) open.get(id)?.reject(new Error(error));
      else open.get(id)?.resolve(result);
      open.delete(id);
    },
  };
}

/** @returns {Promise<Driver | undefined>} */
async function chromium() {
  const profile = folder();
  const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe", `--user-data-dir=${profile.path}`, "about:blank"];
  const child = await started(process.env.CHROMIUM ? [process.env.CHROMIUM] : ["chromium", "chromium-headless-shell", "google-chrome"], flags, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
  if (!child) return undefined;
  const [into, from] = [child.stdio[3], child.stdio[4]];
  const events = [];
  let [rest, sessionId] = ["", undefined];
  const { ask, answer } = asking((id, method, params = {}) => into.write(`${JSON.stringify({ id, method, params, sessionId })}\0`));
  from.setEncoding("utf8").on("data", (part) => {
    const messages = (rest + part).split("\0");
    rest = messages.pop();
    for (const message of messages.map((text) => JSON.parse(text))) {
      if (message.id === undefined) events.push(message);
      else answer(message.id, message.error?.message, message.result);
    }
  });
  const { targetInfos } = await ask("Target.getTargets");
  ({ sessionId } = await ask("Target.attachToTarget", { targetId: targetInfos.find((target) => target.type === "page").targetId, flatten: true }));
  await Promise.all(["Page.enable", "Runtime.enable", "Log.enable"].map((method) => ask(method)));
  return {
    open: (url) => ask("Page.navigate", { url }),
    async evaluate(expression) {
      const { result, exceptionDetails } = await ask("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
      if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
      return result.value;
    },
    press: (key) => ask("Input.dispatchKeyEvent", { type: "keyDown", key, code: key }),
    async size(width, height) {
      await ask("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 500 });
      return width;
    },
    scheme: (value) => ask("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value }] }),
    picture: async (whole) => (await ask("Page.captureScreenshot", { captureBeyondViewport: whole })).data,
    errors: () =>
      events.filter(({ method, params }) => method === "Runtime.exceptionThrown" || (method === "Log.entryAdded" && params.entry.level === "error")).map(({ params }) => params.exceptionDetails?.exception?.description ?? params.entry?.text),
    close() {
      child.kill("SIGKILL");
      profile.remove();
    },
  };
}

/** What WebDriver's commands do for a test: `command(name, parameters)` sends one, by the name that Marionette has for it. */
function webDriver(command, close) {
  return {
    open: (url) => command("Navigate", { url }),
    async evaluate(expression) {
      const script = `const done = arguments[arguments.length - 1]; (async () => (${expression}))().then((value) => done({ value }), (error) => done({ error: String(error) }));`;
      const { value, error } = await command("ExecuteAsyncScript", { script, args: [] });
      if (error) throw new Error(error);
      return value;
    },
    press: (key) => command("PerformActions", { actions: [{ type: "key", id: "keys", actions: [{ type: "keyDown", value: ARROWS[key] }, { type: "keyUp", value: ARROWS[key] }] }] }),
    async size(width, height) {
      await command("SetWindowRect", { width, height });
      await pause(300);
      return this.evaluate("innerWidth");
    },
    picture: () => command("TakeScreenshot", { full: false }),
    errors: () => [],
    close,
  };
}

/** @returns {Promise<Driver | undefined>} */
async function firefox() {
  const profile = folder();
  const port = await freePort();
  writeFileSync(join(profile.path, "user.js"), `user_pref("marionette.port", ${port});\nuser_pref("datareporting.policy.dataSubmissionEnabled", false);\n`);
  const child = await started(process.env.FIREFOX ? [process.env.FIREFOX] : ["firefox-esr", "firefox"], ["--headless", "--no-remote", "--marionette", "--profile", profile.path], { env: { ...process.env, HOME: profile.path } });
  if (!child) return undefined;
  const close = () => {
    child.kill("SIGKILL");
    profile.remove();
  };
  let socket;
  for (let n = 0; n < 300 && !socket; n++) {
    socket = await new Promise((resolve) => {
      const one = connect(port, "127.0.0.1", () => resolve(one)).once("error", () => resolve(undefined));
    });
    if (!socket) await pause(200);
  }
  if (!socket) {
    close();
    throw new Error("Firefox does not listen");
  }
  let rest = Buffer.alloc(0);
  const { ask, answer } = asking((id, name, params) => {
    const text = JSON.stringify([0, id, `WebDriver:${name}`, params]);
    socket.write(`${Buffer.byteLength(text)}:${text}`);
  });
  socket.on("data", (part) => {
    rest = Buffer.concat([rest, part]);
    for (let colon; (colon = rest.indexOf(":")) > 0; ) {
      const end = colon + 1 + Number(rest.subarray(0, colon));
      if (rest.length < end) return;
      const message = JSON.parse(rest.subarray(colon + 1, end));
      rest = rest.subarray(end);
      if (Array.isArray(message)) answer(message[1], message[2] && `${message[2].error}: ${message[2].message}`, message[3]?.value ?? message[3]);
    }
  });
  await ask("NewSession", {});
  await ask("SetTimeouts", { script: 60_000, pageLoad: 60_000 });
  return webDriver(ask, close);
}

/** WebDriver's paths for the commands that are used here. */
const PATHS = { Navigate: "url", ExecuteAsyncScript: "execute/async", PerformActions: "actions", SetWindowRect: "window/rect", SetTimeouts: "timeouts" };

/** WebKit draws into a window, so it gets a screen of its own from Xvfb where there is none. @returns {Promise<Driver | undefined>} */
async function webkit() {
  const screen = process.env.DISPLAY ? undefined : await started(["Xvfb"], ["-displayfd", "3", "-screen", "0", "1600x1200x24", "-nolisten", "tcp"], { stdio: ["ignore", "ignore", "ignore", "pipe"] });
  if (!screen && !process.env.DISPLAY) return undefined;
  const display = screen ? `:${(await new Promise((resolve) => screen.stdio[3].once("data", resolve))).toString().trim()}` : process.env.DISPLAY;
  const port = await freePort();
  const home = folder();
  const child = await started(["WebKitWebDriver"], [`--port=${port}`], { env: { ...process.env, DISPLAY: display, HOME: home.path, GDK_BACKEND: "x11" }, detached: true });
  const close = () => {
    // The driver's browser is of its group.
    if (child) process.kill(-child.pid, "SIGKILL");
    screen?.kill("SIGKILL");
    home.remove();
  };
  if (!child) {
    close();
    return undefined;
  }
  const send = async (method, path, body) => {
    const response = await fetch(`http://127.0.0.1:${port}${path}`, { method, body: body && JSON.stringify(body), signal: AbortSignal.timeout(120_000) });
    const { value } = await response.json();
    if (value?.error) throw new Error(`${value.error}: ${value.message}`);
    return value;
  };
  for (let n = 0; ; n++) {
    const there = await send("GET", "/status").then(() => true, () => false);
    if (there) break;
    if (n === 100) {
      close();
      throw new Error("WebKitWebDriver does not listen");
    }
    await pause(100);
  }
  const { sessionId } = await send("POST", "/session", { capabilities: {} });
  const command = (name, params) => (name === "TakeScreenshot" ? send("GET", `/session/${sessionId}/screenshot`) : send("POST", `/session/${sessionId}/${PATHS[name]}`, params));
  await command("SetTimeouts", { script: 60_000, pageLoad: 60_000 });
  return webDriver(command, close);
}

/** How each is started, and in which of Debian's packages it is. */
export const BROWSERS = { chromium: [chromium, "chromium"], firefox: [firefox, "firefox-esr"], webkit: [webkit, "webkit2gtk-driver and xvfb"] };
