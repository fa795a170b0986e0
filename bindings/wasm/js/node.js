// The package in Node: the module lies beside this file and is there at once. `init` is for programs that also run in browsers.
import { readFileSync } from "node:fs";
import { initSync } from "./gumball.js";

initSync({ module: readFileSync(new URL("./gumball_bg.wasm", import.meta.url)) });

/** Does nothing: in Node the module is there. */
export async function init() {}

export * from "./gumball.js";
export { GumballError } from "./host.js";
