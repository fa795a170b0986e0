// How does a row of one's own come in, and how does a row go out? In: numbers that are pasted, as Python, NumPy, torch or JSON print them,
// or a file of them or NumPy's .npy. Out: .npy.

/** The most logits of a row: what the core takes. */
export const MOST = 1 << 20;
/** How much of a text file is read: more than a row has in any print. */
export const READ_BYTES = 1 << 26;
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

/** Reads numbers with blanks, commas or semicolons between. */
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
    if (row.length === MOST) throw new Error(`The row has more than ${MOST} numbers; allowed are 1 to ${MOST}.`);
    row.push(number(word, row.length));
    after = "word";
  }
  if (row.length === 0) throw new Error("There are no numbers.");
  return Float32Array.from(row);
}

/** Returns a file's text: UTF-8, or UTF-16 where its byte order mark says so, as shells of Windows write it. */
export function textOf(buffer) {
  const [first, second] = new Uint8Array(buffer, 0, Math.min(2, buffer.byteLength));
  const wide = first === 0xff && second === 0xfe ? "utf-16le" : first === 0xfe && second === 0xff ? "utf-16be" : "utf-8";
  return new TextDecoder(wide).decode(buffer);
}

/** Reads a row from text: numbers, or the first innermost list of a print, which may have a name and a call around it. */
export function fromText(text) {
  const given = text.trim();
  const start = /^\{/.test(given) ? given.search(/"logits"\s*:\s*\[/) : given.search(/\[/);
  if (start < 0 && /^[[{]/.test(given)) throw new Error('The object has no list "logits".');
  if (start < 0) return numbers(given);
  const before = given.slice(0, start).trim();
  if (!/^\{/.test(given) && !/^([\w.]+\s*[=:]\s*)?([\w.]+\s*\(\s*)?$/.test(before)) throw new Error(`Before the list stands ${JSON.stringify(before.slice(0, 40))}; allowed is a name or a call, such as tensor(.`);
  const open = /\[[\s[]*/y;
  open.lastIndex = given.indexOf("[", start);
  open.test(given);
  const end = given.indexOf("]", open.lastIndex);
  if (end < 0) throw new Error("The list does not end: its ] is missing.");
  const behind = given.slice(end + 1, end + 200).trim();
  if (!/^([\])},;]|$)/.test(behind) && !/^\[/.test(behind)) throw new Error(`After the list stands ${JSON.stringify(behind.slice(0, 40))}.`);
  return numbers(given.slice(open.lastIndex, end));
}

/** Reads the first row of a .npy file of f16, f32 or f64, little endian, in C order. @param {ArrayBuffer} buffer its beginning is enough */
export function fromNpy(buffer) {
  const view = new DataView(buffer);
  if (buffer.byteLength < 12 || view.getUint32(0) !== 0x934e554d) throw new Error("The file is no .npy file.");
  const old = view.getUint8(6) === 1;
  const length = old ? view.getUint16(8, true) : view.getUint32(8, true);
  const start = (old ? 10 : 12) + length;
  const header = new TextDecoder("latin1").decode(new Uint8Array(buffer, old ? 10 : 12, Math.min(length, buffer.byteLength - 12)));
  const type = /'descr':\s*'([^']+)'/.exec(header)?.[1];
  const shape = /'shape':\s*\(([^)]*)\)/.exec(header)?.[1].split(",").filter((part) => part.trim()).map(Number) ?? [];
  const size = { "<f2": 2, "<f4": 4, "<f8": 8 }[type];
  if (!size) throw new Error(`The numbers are ${type}; allowed are <f2, <f4 and <f8.`);
  if (/'fortran_order':\s*True/.test(header) && shape.length > 1) throw new Error("The array is in Fortran order; allowed is C order.");
  const vocab = shape.at(-1) ?? 0;
  if (vocab < 1 || vocab > MOST) throw new Error(`The row has ${vocab} numbers; allowed are 1 to ${MOST}.`);
  if (start + vocab * size > buffer.byteLength) throw new Error(`The file has ${buffer.byteLength} bytes; its first row ends at ${start + vocab * size}.`);
  const row = new Float32Array(vocab);
  for (let id = 0; id < vocab; id++) {
    const at = start + id * size;
    row[id] = size === 4 ? view.getFloat32(at, true) : size === 8 ? view.getFloat64(at, true) : half(view.getUint16(at, true));
  }
  return row;
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
