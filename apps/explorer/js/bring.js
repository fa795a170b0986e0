// How does a row of one's own come in, and how does a row go out? In: numbers that are pasted, as Python, NumPy, torch or JSON print them,
// or a file of them, .npy or .safetensors, of whose arrays only the header and one row are read. Out: .npy.

/** The most logits of a row: what the core takes. */
export const MOST = 1 << 20;
/** How much of a text file is read: more than a row has in any print. */
const READ_BYTES = 1 << 26;
/** The longest header that .safetensors allows, and one longer than those of .npy are. */
const HEADER_BYTES = 100_000_000;
const NPY_HEAD_BYTES = 1 << 16;
/** How the numbers of a file are laid out, by the names that .npy and .safetensors have for them. */
const TYPES = { "<f2": Uint16Array, "<f4": Float32Array, "<f8": Float64Array, F16: Uint16Array, BF16: Uint16Array, F32: Float32Array, F64: Float64Array };
/** Where the numbers of a file begin that `toNpy` makes. */
export const NPY_START = 128;

const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i;
const NAMES = { nan: NaN, inf: Infinity, infinity: Infinity, null: -Infinity, none: -Infinity };

function number(word, index) {
  if (NUMBER.test(word)) return Number(word);
  const named = /^([-+]?)([a-z]+)$/i.exec(word);
  const value = named && Object.hasOwn(NAMES, named[2].toLowerCase()) ? NAMES[named[2].toLowerCase()] : undefined;
  if (value === undefined) {
    if (/\.\.\./.test(word)) throw new Error('The print leaves numbers out ("..."): print the whole row, or save it as .npy.');
    throw new Error(`Number ${index} is ${JSON.stringify(word.slice(0, 40))}; allowed are numbers, NaN, Infinity, -Infinity and null.`);
  }
  return named[1] === "-" ? -value : value;
}

/** Reads numbers with blanks, commas or semicolons between. @returns {number[]} */
function numbers(text) {
  // "1,5 2,5": is a comma a point, or does it stand between two numbers?
  const chunks = text.slice(0, 10_000).trim().split(/,?\s+|;/);
  const tight = chunks.filter((chunk) => /^[-+]?\d+,\d+(e[-+]?\d+)?$/i.test(chunk));
  if (chunks.length > 1 && 2 * tight.length > chunks.length)
    throw new Error(`"${tight[0]}" may be one number or two: write decimals with a point, and a blank after a comma between numbers.`);
  const row = [];
  let after = "";
  for (const [, word, mark] of text.matchAll(/([^\s,;]+)|([,;])/g)) {
    if (mark) {
      if (after === "mark") throw new Error(`Nothing stands between two commas, after ${row.length} numbers.`);
      after = "mark";
      continue;
    }
    if (row.length === MOST) throw new Error(`There are more than ${MOST} numbers; allowed are 1 to ${MOST}.`);
    row.push(number(word, row.length));
    after = "word";
  }
  if (row.length === 0) throw new Error("There are no numbers.");
  return row;
}

/** Returns a file's text: UTF-8, or UTF-16 where its byte order mark says so, as shells of Windows write it. */
function textOf(buffer) {
  const [first, second] = new Uint8Array(buffer, 0, Math.min(2, buffer.byteLength));
  const wide = first === 0xff && second === 0xfe ? "utf-16le" : first === 0xfe && second === 0xff ? "utf-16be" : "utf-8";
  return new TextDecoder(wide).decode(buffer);
}

/** Reads a list from text: numbers, or the first innermost list of a print, which may have a name and a call around it, or the list of an object
 * that has one of the names, `named`. */
function list(text, named) {
  const given = text.trim().replace(/^\(([^()]*?),?\s*\)$/, "[$1]");
  const isObject = given.startsWith("{");
  const start = isObject ? given.search(new RegExp(`["'](${named.join("|")})["']\\s*:\\s*([\\w.]+\\s*\\()?\\s*\\[`)) : given.search(/\[/);
  if (start < 0 && /^[[{]/.test(given)) throw new Error(`The object has no list ${named.map((name) => `"${name}"`).join(" or ")}.`);
  if (start < 0) return numbers(given);
  const before = given.slice(0, start).trim();
  if (!isObject && !/^([\w.]+\s*[=:]\s*)?([\w.]+\s*\(\s*)?('\w'\s*,)?$/.test(before)) throw new Error(`Before the list stands ${JSON.stringify(before.slice(0, 40))}; allowed is a name or a call, such as tensor(.`);
  const open = /\[[\s[]*/y;
  open.lastIndex = given.indexOf("[", start);
  open.test(given);
  const end = given.indexOf("]", open.lastIndex);
  if (end < 0) throw new Error("The list does not end: its ] is missing.");
  const behind = given.slice(end + 1, end + 200).trim();
  if (!/^([\])},;]|$)/.test(behind) && !/^\[/.test(behind)) throw new Error(`After the list stands ${JSON.stringify(behind.slice(0, 40))}.`);
  return numbers(given.slice(open.lastIndex, end));
}

/** Reads a row from text. */
const fromText = (text) => Float32Array.from(list(text, ["logits"]));

/** Reads ids from text; none if it is empty. */
export function idsFrom(text) {
  if (!text.trim() || /^\[\s*\]$/.test(text.trim())) return [];
  const ids = list(text, ["input_ids", "prompt_token_ids", "prompt_ids", "output_ids", "token_ids", "ids"]);
  const wrong = ids.findIndex((id) => !Number.isInteger(id) || id < 0 || id >= 2 ** 32);
  if (wrong >= 0) throw new Error(`Id ${wrong} is ${ids[wrong]}; allowed are whole numbers from 0 to 4294967295.`);
  return ids;
}

/**
 * @typedef {{name: string, type: string, rows: number, vocab: number, start: number}} Rows
 * The rows of a file: `start` is where their bytes begin, and a `type` of "text" is one row in print.
 */

/** An array of a file as rows: all but its last axis count them. */
function rowsOf(name, type, shape, start) {
  return { name, type, vocab: shape.at(-1) ?? 0, rows: shape.slice(0, -1).reduce((rows, axis) => rows * axis, 1), start };
}
const isRow = ({ vocab, rows }) => vocab >= 1 && vocab <= MOST && rows >= 1;

/** What may take long, and is done by names, so that it can be done where it holds up no page. */
export const APART = {
  fromText,

  /** Reads a row of text. */
  fromTextFile: (bytes) => fromText(textOf(bytes)),

  /** Finds the rows of a .npy file by its beginning. @returns {Rows[]} */
  npy(name, head) {
    const view = new DataView(head);
    if (view.byteLength < 12 || view.getUint32(0) !== 0x934e554d) throw new Error("The file is no .npy file.");
    const old = view.getUint8(6) === 1;
    const [from, length] = old ? [10, view.getUint16(8, true)] : [12, view.getUint32(8, true)];
    const header = new TextDecoder("latin1").decode(new Uint8Array(head, from, Math.min(length, view.byteLength - from)));
    const type = /'descr':\s*'([^']+)'/.exec(header)?.[1];
    const shape = /'shape':\s*\(([^)]*)\)/.exec(header)?.[1].split(",").filter((part) => part.trim()).map(Number) ?? [];
    if (!["<f2", "<f4", "<f8"].includes(type)) throw new Error(`The numbers are ${type}; allowed are <f2, <f4 and <f8.`);
    if (/'fortran_order':\s*True/.test(header) && shape.length > 1) throw new Error("The array is in Fortran order; allowed is C order.");
    const found = rowsOf(name, type, shape, from + length);
    if (!isRow(found)) throw new Error(`The row has ${found.vocab} numbers; allowed are 1 to ${MOST}.`);
    return [found];
  },

  /** Finds the rows of a .safetensors file by its header. @returns {Rows[]} */
  safetensors(bytes) {
    let header;
    try {
      header = JSON.parse(new TextDecoder().decode(bytes));
    } catch {
      throw new Error("The file is no .safetensors file: its header is no JSON.");
    }
    const tensors = Object.entries(header).filter(([name, told]) => name !== "__metadata__" && Array.isArray(told?.shape) && Array.isArray(told.data_offsets));
    const found = tensors.filter(([, { dtype }]) => Object.hasOwn(TYPES, dtype)).map(([name, { dtype, shape, data_offsets }]) => rowsOf(name, dtype, shape, 8 + bytes.byteLength + data_offsets[0])).filter(isRow);
    if (!found.length) throw new Error(`The file has ${tensors.length} tensors, and none holds rows: allowed are F32, F16, BF16 and F64, with a last axis of 1 to ${MOST}.`);
    // What is called logits is probably meant.
    return found.sort((one, other) => Number(/logit/i.test(other.name)) - Number(/logit/i.test(one.name)));
  },

  /** Returns the numbers of a type as f32. */
  numbers(type, bytes) {
    const given = new TYPES[type](bytes);
    // The bits of a bf16 are the upper half of an f32's.
    if (type === "BF16") return new Float32Array(Uint32Array.from(given, (bits) => bits << 16).buffer);
    return given instanceof Uint16Array ? Float32Array.from(given, half) : Float32Array.from(given);
  },
};

const read = (file, start, bytes) => file.slice(start, start + bytes).arrayBuffer();

/** Finds the rows that a file has. `apart(name, ..)` does one of `APART` elsewhere. @param {File} file @returns {Promise<Rows[]>} */
export async function opened(file, apart) {
  if (/\.npy$/i.test(file.name)) return apart("npy", file.name, await read(file, 0, NPY_HEAD_BYTES));
  if (!/\.safetensors$/i.test(file.name)) return [{ name: file.name, type: "text", rows: 1, vocab: 0, start: 0 }];
  const head = await read(file, 0, 8);
  const length = head.byteLength === 8 ? Number(new DataView(head).getBigUint64(0, true)) : 0;
  if (length < 2 || length > Math.min(HEADER_BYTES, file.size - 8)) throw new Error(`The file is no whole .safetensors file: its header would have ${length} bytes.`);
  return apart("safetensors", await read(file, 8, length));
}

/** Reads one row of a file. @param {File} file @param {Rows} of @param {number} index @returns {Promise<Float32Array>} */
export async function rowFrom(file, of, index, apart) {
  if (of.type === "text") return apart("fromTextFile", await read(file, 0, READ_BYTES));
  if (!(index >= 0 && index < of.rows)) throw new Error(`The row is ${index}; allowed are 0 to ${of.rows - 1}.`);
  const bytes = of.vocab * TYPES[of.type].BYTES_PER_ELEMENT;
  const start = of.start + index * bytes;
  const given = await read(file, start, bytes);
  if (given.byteLength < bytes) throw new Error(`The file has ${file.size} bytes; row ${index} ends at ${start + bytes}.`);
  return apart("numbers", of.type, given);
}

/** Returns a row as a .npy file of f32, which holds numbers of f16 exactly. @param {import("./rows.js").Row} row */
export function toNpy({ logits, dtype }) {
  const header = `{'descr': '<f4', 'fortran_order': False, 'shape': (${logits.length},), }`.padEnd(NPY_START - 11) + "\n";
  const file = new Uint8Array(NPY_START + 4 * logits.length);
  const view = new DataView(file.buffer);
  file.set([0x93, ..."NUMPY".split("").map((letter) => letter.charCodeAt(0)), 1, 0, header.length & 255, header.length >> 8]);
  file.set(new TextEncoder().encode(header), 10);
  logits.forEach((z, id) => view.setFloat32(NPY_START + 4 * id, dtype === "float16" ? half(z) : z, true));
  return file;
}

/** The number that 16 bits of f16 stand for. */
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
}
