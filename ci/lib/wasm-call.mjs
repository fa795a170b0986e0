// Calls the main function of a module that is compiled for wasm32-unknown-unknown: a program, or the tests of a crate; in browsers, and in
// Node by `node ci/lib/wasm-call.mjs FILE.wasm`. Such a module has no output. A failure is a trap; what the panic would have printed is looked
// for in the module's memory.

/** Runs a module; throws an Error with the panic's message if it fails. Returns the seconds that it took. */
export async function call(bytes) {
  const { exports } = await WebAssembly.instantiate(await WebAssembly.compile(bytes), {});
  const start = performance.now();
  try {
    const status = exports.main(0, 0);
    if (status !== 0) throw new Error(`main returned ${status}`);
  } catch (error) {
    const memory = new TextDecoder("latin1").decode(exports.memory.buffer);
    const messages = memory.match(/panicked at [\w./-]+\.rs:\d+:\d+:\n[^\0]{1,600}/g) ?? [];
    throw new Error([...new Set(messages), error.stack].join("\n"));
  }
  return (performance.now() - start) / 1000;
}

// Node runs this file itself.
if (globalThis.process?.argv[1]?.endsWith("/wasm-call.mjs")) {
  const { readFileSync } = await import("node:fs");
  const file = process.argv[2];
  try {
    const seconds = await call(readFileSync(file));
    console.log(`${file.split("/").at(-1)}: passed in ${seconds.toFixed(1)} s`);
  } catch (error) {
    console.error(error.message);
    process.exit(1);
  }
}
