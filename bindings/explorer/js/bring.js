// How does a row of one's own come in? As JSON or numbers that are pasted, or as a file of JSON or NumPy's .npy.

/** The most logits of a row: what the core takes. */
export const MOST = 1 << 20;

function checked(numbers) {
  if (numbers.length === 0 || numbers.length > MOST) throw new Error(`The row has ${numbers.length} numbers; allowed are 1 to ${MOST}.`);
  return numbers;
}

/** Reads a row from text: a JSON array (of the first row, if it holds rows), or numbers with blanks, commas or line breaks between. */
export function fromText(text) {
  const trimmed = text.trim();
  if (!trimmed.startsWith("[") && !trimmed.startsWith("{")) {
    const words = trimmed.split(/[\s,;]+/).filter(Boolean);
    return checked(Float32Array.from(words.map((word, index) => number(/^[-+]?inf(inity)?$/i.test(word) ? (word.startsWith("-") ? -Infinity : Infinity) : word, index))));
  }
  let data = JSON.parse(trimmed.replace(/(?<=[[,\s])-Infinity(?=[\],\s])/g, "null"));
  if (!Array.isArray(data)) data = data.logits;
  if (Array.isArray(data?.[0])) data = data[0];
  if (!Array.isArray(data)) throw new Error('The JSON is neither an array of numbers nor an object with "logits".');
  return checked(Float32Array.from(data.map((value, index) => (value === null ? -Infinity : number(value, index)))));
}

function number(value, index) {
  const read = Number(value);
  if (value === "" || typeof value === "boolean" || typeof value === "object" || Number.isNaN(read)) throw new Error(`Number ${index} is ${JSON.stringify(value)}; allowed are numbers, null and -Infinity.`);
  return read;
}

/** Reads the first row of a .npy file of f16, f32 or f64, little endian, in C order. @param {ArrayBuffer} buffer */
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
  return checked(row);
}

/** The number that 16 bits of f16 stand for. */
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
}
