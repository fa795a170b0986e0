export * from "./gumball.js";
export { GumballError } from "./host.js";

/**
 * Fetches and compiles the module; in Node it is there already. Nothing else may be called before. `options.module_or_path`: where the
 * module lies, or its bytes, if that is not beside the package's files.
 */
export function init(options?: {
  module_or_path: string | URL | Request | Response | BufferSource | WebAssembly.Module | Promise<Response>;
}): Promise<unknown>;
