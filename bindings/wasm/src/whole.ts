/** A parameter of requests. */
export interface Parameter {
  /** Its name; a field of a part has the part's name in front, as in "dry.base". */
  name: string;
  holds: "number" | "integer" | "boolean" | "name" | "list" | "object";
  about: string;
  /** Its neutral value; null where it is absent, or its part is. */
  neutral: unknown;
  stage: "edit" | "temperature" | "filter" | "draw" | "logprobs";
  /** The least and the largest number, and whether the least one lies outside. */
  range?: [number, number];
  is_open?: boolean;
  /** The filter that it switches on, mirostat or adaptive-p: its name, the name as people write it, and what it is for. */
  filter?: { name: Filter | "mirostat" | "adaptive_target"; title: string; purpose: string };
  /** A usual value of a filter's parameter, 1 for true. */
  usual?: number;
}

/** Options of a pool. */
export interface PoolOptions {
  /** How many sequences can be in flight; 256. */
  slots?: number;
  /** How many of the most likely tokens the outputs have places for; 0. */
  top_n?: number;
  /** How many given ids the outputs have places for; 0. */
  ids?: number;
  /** Whether outputs have the kept sets, which costs a sort of each. */
  kept?: boolean;
  /** The mark of requests that name none. */
  watermark?: MarkedBy | null;
  /** Whether a request that wants no mark is refused. */
  enforce_all?: boolean;
  /** The way from logits to a token; "race" if left out. */
  route?: string;
}

/** What a text is marked by. */
export type MarkedBy = Exclude<SamplingParams["watermark"], false | null | undefined>;

/** What comes with the rows of a batch; options of `Pool.step`. */
export interface RowOptions {
  /** A bitmask for each row: all words flat, as many for each row, or a list in which null is none. */
  masks?: Uint32Array | Int32Array | readonly (Uint32Array | Int32Array | null | undefined)[] | null;
  /** Which rows' masks count; all of them if left out. */
  mask_present?: readonly boolean[] | Uint8Array | null;
  /** For each row the id to emit whatever is drawn; null or -1 for none. */
  forced?: readonly (number | null | undefined)[] | Int32Array | null;
  /** For each slot the row of the logits that it reads. */
  row_indices?: Integers | null;
  /** For each row the caller's own edits. */
  hooks?: readonly (Hook | null | undefined)[] | null;
  /** What the rows hold; "logits" if left out. */
  kind?: "logits" | "probabilities";
  /** What the words of a Uint16Array are. */
  dtype?: Dtype;
}

/** Options of `Pool.score`. */
export interface ScoreOptions extends Omit<RowOptions, "forced" | "row_indices"> {
  /** How many of the ids are prompt; all if left out. */
  prompt_len?: number;
  /** The place of the token that the first row predicts; 1. */
  start?: number;
}

/** How drafts are judged. */
export type VerifyMode = "coupled" | "greedy" | "rejection" | "block" | "threshold";

/** Options of `Pool.verify`. */
export interface VerifyOptions extends RowOptions {
  /** For each request a list with the draft that each one follows, -1 for the end of the history. */
  parents?: readonly Integers[] | null;
  /** For each request its tree as links between rows: the first child of each row, -1 for none. */
  first_child?: readonly Integers[] | null;
  /** The next sibling of each row, -1 for none. */
  next_sibling?: readonly Integers[] | null;
  /** The probabilities that drafts were drawn from: a row for each row of logits. */
  draft_probs?: Float32Array | null;
  /** How drafts are judged; "coupled" if left out. */
  mode?: VerifyMode;
  /** For the mode "threshold": a draft of at least this probability is accepted; 1. */
  threshold_single?: number;
  /** For the mode "threshold": a draft is also accepted if a coin times this is below its probability and its earlier siblings'; 1. */
  threshold_acc?: number;
}

/** Options of `Pool.draft`. */
export interface DraftOptions extends RowOptions {
  /** For each row the drafts between the end of the history and the row. */
  paths?: readonly Integers[] | null;
  /** How many drafts each row gets; 1. */
  siblings?: number;
  /** The mode of the verification to come; "coupled" if left out. */
  mode?: VerifyMode;
}

export interface Pool {
  /**
   * Draws drafts from the rows of a draft model as the requests would draw them, and changes no sequence: `siblings` for each row, -1
   * where there are no more. `slots` has one for each row; a slot may stand there several times.
   */
  draft(logits: Rows, slots: Integers, options?: DraftOptions & { probs?: false }): Int32Array;
  /** The same with the probabilities that the drafts were drawn from, a row of the vocabulary for each row. */
  draft(logits: Rows, slots: Integers, options: DraftOptions & { probs: true }): [Int32Array, Float32Array];
}

/** What a step says: an element for each row. */
export interface Outputs {
  /** The tokens; -1 where there is none. */
  tokens: Int32Array;
  /** The bits of `Status`. */
  statuses: Uint32Array;
  /** The tokens' logprobs, of requests that ask for logprobs. */
  logprobs: Float32Array;
  /** The tokens' ranks, 1 for the most likely. */
  ranks: Uint32Array;
  /** The temperatures in use; 0 if greedy. */
  temperatures: Float32Array;
  /** Mirostat's limits for the next tokens, in bits, or the means of adaptive-p. */
  mirostat_mu: Float32Array;
  /** The logprobs of the tokens in the second mode; -Infinity where none was asked for. */
  second_logprobs: Float32Array;
  /** For each row the most likely tokens; as many as the pool has places for, -1 where there are no more. */
  top_ids: Int32Array[];
  /** Their logprobs. */
  top_logprobs: Float32Array[];
  /** For each row the logprobs of the ids that its request asks for. */
  id_logprobs: Float32Array[];
  /** Their ranks. */
  id_ranks: Uint32Array[];
  /** For each row the ids that the filters kept, in the order of tokens; undefined unless the pool was made with `kept`. */
  kept?: Uint32Array[];
}

/** What a verification says. */
export interface Verification {
  /** For each request the emitted tokens: the accepted drafts and one more. */
  tokens: Int32Array[];
  /** For each request the rows of logits that these come from, whose keys and values a model's cache keeps. */
  rows: Uint32Array[];
  /** For each request where its tokens stand in `outputs`. */
  places: { start: number; end: number }[];
  /** How many drafts of each request were accepted. */
  accepted: Uint32Array;
  /** The outputs of all rows; the first rows of each request hold its emitted tokens, the others are as of padding. */
  outputs: Outputs;
}

/** A number, or one for each row. */
export type Numbers = number | readonly number[] | Float32Array;
/** An integer, or one for each row. */
export type IntegerColumn = number | Integers;
/** Whether the result is a pair of it and each row's bits of `Status`. */
interface Statuses<S extends boolean> {
  return_statuses?: S;
}
type Result<R, S extends boolean> = S extends true ? [R, Uint32Array] : R;
/** Options of operators that filter rows. */
export interface FilterOptions {
  temperature?: Numbers;
  top_k?: IntegerColumn;
  top_p?: Numbers;
  min_p?: Numbers;
  /** The order of the filters, as in SamplingParams; with "joint" all see the unfiltered row. */
  order?: SamplingParams["order"];
  /** All other filters and bans. */
  params?: SamplingParams;
  dtype?: Dtype;
}
/** Options of operators that draw. */
export interface KeyOptions {
  /** In 0..2^64, one or one for each output, with a position: { seed: 7, position: step }. If left out, each call draws by fresh entropy. */
  seed?: Seed | readonly Seed[] | BigUint64Array;
  /** The number of tokens before the drawn one. A seed without one is refused: a loop would draw every token by the same random words. */
  position?: IntegerColumn;
  /** The draw index; each output's own index if left out, so that outputs with equal seed and position draw independently. */
  draw?: IntegerColumn;
}

/**
 * Returns the softmax of each row at its temperature, 1 if left out. The maximum is subtracted before the division, so logits of 1e6 at
 * 0.01 stay finite; at temperature 0 the first of the largest logits gets 1. A row without a logit above -Infinity becomes all 0.
 */
export function softmax<S extends boolean = false>(logits: Rows, vocab: number, options?: { temperature?: Numbers; dtype?: Dtype } & Statuses<S>): Result<Float32Array, S>;
/** Returns the distribution that each row's token is drawn from, after temperature, bans and filters. */
export function probabilities<S extends boolean = false>(logits: Rows, vocab: number, options?: FilterOptions & { kind?: "logits" } & Statuses<S>): Result<Float32Array, S>;
/** Returns the kept probabilities of each row, scaled to a sum of 1, and 0 for the others. Ties at the cut of a filter keep the lower ids. */
export function probabilities<R extends Rows, S extends boolean = false>(probs: R, vocab: number, options: FilterOptions & { kind: "probabilities" } & Statuses<S>): Result<R, S>;
/** Returns each row of logits with -Infinity for tokens that its filters and bans do not keep; the kept ones are not divided by the temperature. */
export function mask_logits<R extends Rows, S extends boolean = false>(logits: R, vocab: number, options?: FilterOptions & Statuses<S>): Result<R, S>;

/** Options of draws: `indices` is the row that each output reads, or `n` the number of outputs of each row. Rows of probabilities need not sum to 1. */
export interface DrawOptions extends FilterOptions, KeyOptions {
  kind?: "logits" | "probabilities";
  indices?: Integers;
  n?: number;
}
/** Draws a token for each output, after temperature, filters and bans; -1 for a row without one. With `n`, that many for each row, one row after the other. */
export function sample<S extends boolean = false>(rows: Rows, vocab: number, options?: DrawOptions & Statuses<S>): Result<Int32Array, S>;

/**
 * Returns how far all logits of each row may move, each by its own amount up or down, while `sample` draws the same token by these options:
 * -Infinity of a row without a token, Infinity if no other token can be drawn. It is the radius that a pool reports as the second mode of
 * logprobs. Throws a GumballError for filters of which no radius is known, as typical-p.
 */
export function radii(rows: Rows, vocab: number, options: FilterOptions & KeyOptions & { seed: NonNullable<KeyOptions["seed"]> }): Float32Array;

/** Returns the logprob and the rank of one token of each row, raw: at temperature 1, without edits and filters. -1 is no token. */
export function selected_logprobs(logits: Rows, vocab: number, tokens: Integers, options?: { kind?: "logits" | "probabilities"; dtype?: Dtype }): { logprobs: Float32Array; ranks: Uint32Array; statuses: Uint32Array };

/** Options of `judge`. */
export interface JudgeOptions extends KeyOptions {
  /** For each tree a list with -1 for the root or the index of a draft before it; chains if left out. */
  parents?: readonly Integers[];
  /** "rejection". */
  rule?: "rejection" | "block" | "threshold";
  /** As in `Pool.verify`. */
  threshold_single?: number;
  /** As in `Pool.verify`. */
  threshold_acc?: number;
}
/**
 * Walks each tree of drafts from its root while a draft is accepted, and draws one more token where the walk ends. draft_token_ids: a list
 * for each tree, as many in each; an id outside the vocabulary marks a draft that was not drawn. target_probs: [trees, drafts + 1, vocab],
 * flat: the root's row, then the one behind each draft. draft_probs: the same of the drafter, of which the last row may be left out, or
 * null. Returned are for each tree the accepted drafts, the token drawn behind them, then -1; the rows that they come from; how many drafts
 * were accepted; and of chains by rejection with draft_probs how many would be accepted each by itself.
 */
export function judge(
  draft_probs: Float32Array | null,
  draft_token_ids: readonly Integers[],
  target_probs: Float32Array,
  vocab: number,
  options?: JudgeOptions,
): { tokens: Int32Array[]; rows: Int32Array[]; accepted: Uint32Array; accepted_alone: Uint32Array | null; statuses: Uint32Array };

/** Options of `inspect` and `inspect_html`. */
export interface InspectOptions extends Omit<SampleOptions, "hook" | "kind"> {
  /** The ids of the prompt. */
  prompt?: Integers;
  /** The ids generated so far. */
  output?: Integers;
  /** The number of tokens before the drawn one; as many as prompt and output have if left out. */
  position?: number;
  /** The draw index; 0. */
  draw?: number;
  /** Mirostat's limit, in bits, or the mean of adaptive-p; that before the first token if left out. */
  mu?: number;
  /** Where the row comes from, in words. */
  source?: string;
  /** Returns the text of an id, if there is a tokenizer. */
  texts?: (id: number) => string | undefined;
  /** Leaves out `race`, `radius` and `what_if`, about half of the work. */
  brief?: boolean;
  /** Of `inspect_html`: the text that the token continues. */
  context?: { prompt?: string; said?: string };
}

/** A token in a trace. */
export interface TracedToken {
  id: number;
  text?: string;
  /** Its place in the order, from 0; null for a forced token that the edits banned. */
  place: number | null;
  /** Its logit as it came, and after the edits; null: not finite. */
  raw: number | null;
  logit: number | null;
  /** Its probability in the edited row, and in the draw. */
  p: number;
  p_kept: number;
  /** When it arrived in the race, and its score; null where nothing was drawn or it was not kept. */
  arrival: number | null;
  score: number | null;
}

/** What every stage did to a row; the fields that are not typed here are those of `gumball inspect --json`. */
export interface Trace {
  source: string;
  vocab: number;
  /** What the row's data had to say, by name. */
  status: string[];
  /** The seed in use; above 2^53 not exact, as JSON has it. */
  seed: number;
  position: number;
  draw: number;
  params: { readonly [name: string]: unknown };
  edits: { readonly [name: string]: unknown };
  candidates: number;
  temperature: { asked: number; in_use: number; entropy_bits: number; entropy_in_use_bits: number };
  filters: { readonly [name: string]: unknown }[];
  kept: { first: number; end: number; share: number };
  tokens: TracedToken[];
  curve: { place: number; p: number; cumulative: number }[];
  race: { readonly [name: string]: unknown } | null;
  /** The token that was chosen or forced; null in an empty row. */
  winner: TracedToken | null;
  radius: number | null;
  what_if: { readonly [name: string]: unknown } | null;
}

/** Options of `detect`. */
export interface DetectOptions {
  /** What the text would have been drawn with. */
  watermark?: MarkedBy | null;
  /** The ids in front of the text, if they are known. */
  prompt?: Integers | null;
  /** Numbers of keys to look for, in the place of the watermark's own. */
  keys?: Integers | null;
  /** Whose mark; "gumball" if left out. Other engines' rules stand in the place of the watermark's scope and window. */
  scheme?: "gumball" | "vllm" | "vllm_dual_key" | `vllm_dual_key=${number}` | "sglang" | `sglang=${number}` | `sglang=${number},${number}`;
}

/** Options of `find_marked`. */
export interface FindOptions extends Omit<DetectOptions, "keys"> {
  /** How many ids a window has; 200. */
  length?: number;
  /** Below which p-value a part is marked; 1e-4. */
  alpha?: number;
}

/** A part of a text that is marked. */
export interface MarkedPart {
  /** The index of its first id, counted from the end of the prompt. */
  start: number;
  /** The index after its last id. */
  end: number;
  evidence: Evidence;
}

/** How likely it is that a text without a mark scores as much. */
export interface Evidence {
  /** The number of the key that the text was looked at with; of several, of the one with the smallest p-value. */
  key: number;
  /** How many tokens count, and how many do not, as their context came before or is not whole. */
  tokens: number;
  skipped: number;
  /** The sum of the scores of the tokens that count, whose number is the mean of a text without the mark. */
  score: number;
  /** The p-value, and its natural logarithm; multiplied by the number of keys or parts that were looked at. */
  p_value: number;
  ln_p: number;
}
