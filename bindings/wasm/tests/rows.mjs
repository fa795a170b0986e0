// Rows of logits that the engine's own tests draw from, made here anew: of integers alone, and so the same everywhere.

const MASK = (1n << 64n) - 1n;

/** A stream of words (splitmix64). */
class Words {
  constructor(seed) {
    this.state = BigInt(seed);
  }

  next() {
    this.state = (this.state + 0x9e3779b97f4a7c15n) & MASK;
    let x = this.state;
    x = ((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
    x = ((x ^ (x >> 27n)) * 0x94d049bb133111ebn) & MASK;
    return x ^ (x >> 31n);
  }

  /** A bell-shaped number: the sum of twelve uniform ones. */
  bell() {
    let sum = 0;
    for (let word = 0; word < 3; word++) {
      const x = this.next();
      for (let part = 0n; part < 4n; part++) sum += Number((x >> (16n * part)) & 0xffffn);
    }
    return Math.fround((sum - 6 * 65535) / 65536);
  }
}

/** A bell-shaped row. */
export function bell(vocab, deviation, seed) {
  const words = new Words(seed);
  return Float32Array.from({ length: vocab }, () => deviation * words.bell());
}

/** A row like a model's: a bell of deviation 2, and twenty peaks raised by 6 to 14. */
export function modelLike(vocab, seed) {
  const words = new Words(seed);
  const row = Float32Array.from({ length: vocab }, () => 2 * words.bell());
  for (let peak = 0; peak < 20; peak++) {
    const place = Number(words.next() % BigInt(vocab));
    const fraction = Number(words.next() >> 40n) * 2 ** -24;
    row[place] += Math.fround(6 + Math.fround(8 * fraction));
  }
  return row;
}

/** A row of few distinct values, so that most cuts fall on ties. */
export function grid(vocab, step, levels, seed) {
  const words = new Words(seed);
  return Float32Array.from({ length: vocab }, () => step * Number(words.next() % BigInt(levels)));
}

/** The bits of numbers as bf16, to nearest, ties to even. */
export function bf16(row) {
  const words = new Uint32Array(row.buffer, row.byteOffset, row.length);
  return Uint16Array.from(words, (word) => (word + 0x7fff + ((word >>> 16) & 1)) >>> 16);
}

/** The bits of numbers as f16; of halves of small integers, which are exact. */
export function f16(row) {
  const words = new Uint32Array(row.buffer, row.byteOffset, row.length);
  return Uint16Array.from(words, (word) => {
    const exponent = (word >>> 23) & 0xff;
    if (exponent === 0) return 0;
    if (exponent < 113 || exponent > 142 || (word & 0x1fff) !== 0) throw new RangeError("not exact as f16");
    return ((word >>> 16) & 0x8000) | ((exponent - 112) << 10) | ((word >>> 13) & 0x3ff);
  });
}
