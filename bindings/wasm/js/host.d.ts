/** A caller's mistake, or something that the machine lacks. Nothing was drawn or changed. */
export class GumballError extends Error {
  /**
   * What is wrong: a value outside its range, two parameters that exclude each other, a length, a name that is not known, a value of
   * the wrong type, or something that the machine lacks. `"broken"` is a defect of this package: make a new object.
   */
  readonly kind: "out_of_range" | "conflict" | "length" | "unknown" | "type" | "json" | "unavailable" | "broken";
  /** The parameter, under the name it has everywhere; what is missing, if `kind` is `"unavailable"`. */
  readonly parameter: string;
  /** The value that was given, as text; empty where there is none to tell. */
  readonly value: string;
  /** What is allowed, in words or as an interval; of `"conflict"` and `"unavailable"` the reason. */
  readonly allowed: string;
}
