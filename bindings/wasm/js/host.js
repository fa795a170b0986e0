// What the module asks of JavaScript: its errors, and seeds.

/** A caller's mistake, or something that the machine lacks. Nothing was drawn or changed. */
export class GumballError extends Error {
  constructor(kind, parameter, value, allowed, message) {
    super(message);
    this.name = "GumballError";
    this.kind = kind;
    this.parameter = parameter;
    this.value = value;
    this.allowed = allowed;
  }
}

/** Returns a seed from fresh entropy, as a BigInt in 0..2^64. */
export function fresh_seed() {
  const [low, high] = globalThis.crypto.getRandomValues(new Uint32Array(2));
  return (BigInt(high) << 32n) | BigInt(low);
}
