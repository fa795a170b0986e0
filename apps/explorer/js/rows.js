// Which rows are there? The recorded ones, and the one that was pasted or opened.

/**
 * @typedef {{name: string, prompt: string, chat?: boolean, said: string, note?: string, ids: number[], output: number[],
 *   logits: Uint16Array | Float32Array, dtype: "float16" | "float32", texts?: string[]}} Row
 */

/** Reads the recorded rows, which apps/cli/examples/record_explorer.rs wrote. @param {Uint8Array} bytes @returns {Row[]} */
export function recorded(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const told = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const { vocab, texts } = told;
  return told.rows.map((entry, index) => {
    const start = 4 + length + index * 2 * vocab;
    const logits = new Uint16Array(vocab);
    for (let id = 0; id < vocab; id++) logits[id] = (bytes[start + id] << 8) | bytes[start + vocab + id];
    const said = entry.output.map((id) => texts[id]).join("");
    return { ...entry, said, logits, dtype: "float16", texts };
  });
}

/** Makes a row of numbers that somebody brought, with the ids before it. @param {Float32Array} logits @returns {Row} */
export function brought(logits, name, ids = [], output = []) {
  return { name, prompt: "", said: "", ids, output, logits, dtype: "float32" };
}

/** Returns a token's text as it can be shown: blanks and line breaks made visible, an id where there is no text. */
export function shown(row, id) {
  const text = row.texts?.[id];
  if (text === undefined || text === "") return `#${id}`;
  return text.replace(/ /g, "\u00b7").replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5");
}

/** Finds the ids that a person may mean: an id as `#12` or a number, or a text, with or without the blank before it. */
export function find(row, asked) {
  const number = /^#?(\d+)$/.exec(asked.trim());
  if (number && Number(number[1]) < row.logits.length && (asked.trim().startsWith("#") || !row.texts)) return [Number(number[1])];
  const wanted = asked.replace(/\u00b7/g, " ");
  const ids = [];
  for (const spelling of [wanted, ` ${wanted}`, wanted.trim()]) {
    const id = row.texts?.indexOf(spelling) ?? -1;
    if (id >= 0 && !ids.includes(id)) ids.push(id);
  }
  if (ids.length === 0 && number && Number(number[1]) < row.logits.length) ids.push(Number(number[1]));
  return ids;
}
