// Runs a program or tests that are compiled for wasm32-unknown-unknown, in Node: `node ci/wasm-main.mjs FILE.wasm`.
import { readFileSync } from "node:fs";
import { call } from "./wasm-call.mjs";

const file = process.argv[2];
try {
  const seconds = await call(readFileSync(file));
  console.log(`${file.split("/").at(-1)}: passed in ${seconds.toFixed(1)} s`);
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
