// Calls the main function of a module that is compiled for wasm32-unknown-unknown: a program, or the tests of a crate; in Node and in
// browsers. Such a module has no output. A failure is a trap; what the panic would have printed is looked for in the module's memory.

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
