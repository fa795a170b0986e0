// How does the page reach the core? By messages to its worker, each answered by one; this file has no arithmetic of its own.
const open = new Map();
const handed = new WeakMap();
/** Lets the worker forget rows that the page has forgotten. */
const forgotten = new FinalizationRegistry((key) => worker.postMessage({ id: 0, what: "forget", key }));
/** How long a part of the draws takes. */
const PART_MS = 60;
let [worker, last] = [undefined, 0];

function ask(what, given) {
  return new Promise((resolve, reject) => {
    open.set(++last, { resolve, reject });
    worker.postMessage({ id: last, what, ...given });
  });
}

/** Starts the core: the worker's program and the module, as bytes. Returns the core's version and its parameters. */
export function start(program, module) {
  // A page that is a file may not make a worker of a blob: in Chromium, of a data: address it may everywhere.
  worker = new Worker(`data:text/javascript,${encodeURIComponent(new TextDecoder().decode(program))}`, { type: "module" });
  worker.onmessage = ({ data: { id, answer, error } }) => {
    const { resolve, reject } = open.get(id) ?? {};
    if (!open.delete(id)) return;
    if (error) reject(Object.assign(new Error(error.message), error));
    else resolve(answer);
  };
  worker.onerror = (event) => {
    for (const { reject } of open.values()) reject(new Error(event.message || "the core's worker has ended"));
    open.clear();
  };
  return ask("start", { module });
}

/** The key under which the worker has a row; hands the row over the first time. @param {import("./rows.js").Row} row */
function key(row) {
  if (!handed.has(row)) {
    handed.set(row, ++last);
    forgotten.register(row, last);
    worker.postMessage({ id: 0, what: "row", key: last, row: { ...row, texts: undefined } });
  }
  return handed.get(row);
}

/**
 * Traces a row. `forced` describes one token besides, as the trace's winner; `brief` leaves out the race.
 * @param {import("./rows.js").Row} row
 * @param {Record<string, any>} settings
 * @param {{forced?: number, brief?: boolean}} [options]
 */
export const trace = (row, settings, options = {}) => ask("trace", { key: key(row), settings, ...options });

/**
 * Draws `n` tokens that differ in their draw index alone, a part after the other, so that the core can answer something else between them;
 * fewer once `passed` returns true.
 */
export async function draws(row, settings, n, passed = () => false) {
  const drawn = [];
  for (let more = 8; drawn.length < n && !passed(); ) {
    const began = performance.now();
    drawn.push(...(await ask("draws", { key: key(row), settings, from: drawn.length, n: Math.min(more, n - drawn.length) })));
    more = Math.max(1, Math.min(256, 4 * more, Math.round((PART_MS * more) / (performance.now() - began))));
  }
  return drawn;
}

/** Draws the token after a row: its id, if there is one, and mirostat's limit or the mean of adaptive-p after it. @returns {Promise<{id: number | undefined, mu: number}>} */
export const draw = (row, settings) => ask("draw", { key: key(row), settings });

/**
 * Says where the decisions about two rows part (`parting.js`).
 * @param {[import("./rows.js").Row, Record<string, any>]} one @param {[import("./rows.js").Row, Record<string, any>]} other
 * @returns {Promise<import("./parting.js").Parting>}
 */
export const part = (one, other) => ask("part", { sides: [one, other].map(([row, settings]) => ({ key: key(row), settings })) });

/** Does one of the functions `APART` of `bring.js`. */
export const apart = (name, ...given) => ask("apart", { name, given });
