// Runs a program or a test that is compiled for wasm32-unknown-unknown, in Node: `node ci/wasm-main.mjs FILE.wasm`.
// Such a module has no output. A failure is a trap; what the panic would have printed is looked for in the module's memory.
import { readFileSync } from "node:fs";

const name = process.argv[2].split("/").at(-1);
const module = await WebAssembly.compile(readFileSync(process.argv[2]));
const { exports } = await WebAssembly.instantiate(module, {});
const start = performance.now();
try {
    const status = exports.main(0, 0);
    if (status !== 0) throw new Error(`main returned ${status}`);
} catch (error) {
    const memory = Buffer.from(exports.memory.buffer).toString("latin1");
    const messages = memory.match(/panicked at [\w./-]+\.rs:\d+:\d+:\n[^\0]{1,600}/g) ?? [];
    console.error([...new Set(messages)].join("\n"));
    console.error(error.stack);
    process.exit(1);
}
console.log(`${name}: passed in ${((performance.now() - start) / 1000).toFixed(1)} s`);
