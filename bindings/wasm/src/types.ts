/** Rows of numbers, one after the other: f32, f16, or the bits of bf16 or f16 in a Uint16Array, of which the option `dtype` says which. */
export type Rows = Float32Array | Uint16Array | { readonly [Symbol.toStringTag]: "Float16Array"; readonly length: number };
/** What the words of a Uint16Array are. */
export type Dtype = "float32" | "bfloat16" | "float16";
/** A list of integers. */
export type Integers = readonly number[] | Int32Array | Uint32Array;
/** A seed, in 0..2^64; above 2^53 as a BigInt. */
export type Seed = number | bigint;
/** Changes a copy of a row of logits in its place; -Infinity bans an id. */
export type Hook = (logits: Float32Array) => void;
/** Filters, by name. */
export type Filter = "top_n_sigma" | "top_h" | "top_k" | "typical_p" | "top_p" | "min_p" | "top_a" | "p_less" | "epsilon_cutoff" | "eta_cutoff" | "xtc";

/** Parameters of a request; what is left out is neutral. The rules stand in docs/semantics.md. */
export interface SamplingParams {
  /** Divides the logits; 0 is greedy, as is anything below 2^-100; at most 2^100. */
  temperature?: number;
  /** Replaces a `temperature` above 0 by one that follows a row's entropy: certain rows get `min`, flat ones `max`. */
  dynamic_temperature?: { min: number; max: number; exponent?: number } | null;
  /** How many tokens to keep; at least -1, off if 0, -1 or at least the vocabulary. */
  top_k?: number;
  /** The mass to keep; in 0..=1, 1 is off. */
  top_p?: number;
  /** The mass to keep around the entropy; in 0..=1, 1 is off. */
  typical_p?: number;
  /** The least probability, relative to the best token's, that is kept; in 0..=1, 0 is off. */
  min_p?: number;
  /** How many standard deviations below the best logit are kept; finite and at least 0, 0 is off. Every logit above -inf counts in the deviation, one at the least finite number or with a bias of -100, too: ban by -inf. */
  top_n_sigma?: number;
  /** The largest share of the entropy of the first 100 tokens that is kept, likeliest first; in 0..=1, 0 is off. 1 keeps up to 100 tokens. */
  top_h?: number;
  /** The least probability that is kept, as a multiple of the square of the best token's; in 0..=1, 0 is off. */
  top_a?: number;
  /** Whether tokens less likely than two draws are to be equal are dropped: p-less sampling, which speaks of logits. */
  p_less?: boolean;
  /** The least probability that is kept; in 0..=1, 0 is off. */
  epsilon_cutoff?: number;
  /** The entropy-dependent form of it; in 0..=1, 0 is off. */
  eta_cutoff?: number;
  /** How often XTC acts; in 0..=1, 0 is off. */
  xtc_probability?: number;
  /** The probability from which a token counts as a top choice; in (0, 1]. */
  xtc_threshold?: number;
  /** Ids that XTC never drops: it does nothing in a row in which it would drop one of them; in the vocabulary. Usually the ends of a text and the newline. */
  xtc_exempt_ids?: Integers;
  /** How many tokens a filter keeps at least: the first token that it keeps, and the next ones of its given set; in 1..2^32. */
  min_keep?: number;
  /** Mirostat v2, which stands alone: no filter beside it, and no drafts. `mu` is the limit to start from, in bits; twice `tau` if left out. */
  mirostat?: { tau: number; eta?: number; mu?: number | null } | null;
  /** The probability that adaptive-p keeps the drawn tokens near, on average; in -1..=1, below 0 is off. It acts after all filters, and stands beside neither mirostat, drafts nor logprobs of the mode `processed`. */
  adaptive_target?: number;
  /** How much of adaptive-p's mean is kept at each token: it goes back over about 1 / (1 - decay) tokens; in 0..=0.99. */
  adaptive_decay?: number;
  /** Divides positive and multiplies negative logits of seen tokens; in (0, 2^16], 1 is off. */
  repetition_penalty?: number;
  /** The part of the history whose tokens the repetition penalty counts as seen. */
  repetition_scope?: "prompt" | "output" | "both";
  /** Subtracted once per occurrence; in -2^16..=2^16, 0 is off. */
  frequency_penalty?: number;
  /** Subtracted once if there is any occurrence; in -2^16..=2^16, 0 is off. */
  presence_penalty?: number;
  /** The part of the history in which frequency and presence penalty count tokens. */
  penalty_scope?: "prompt" | "output" | "both";
  /** How many of the history's last tokens repetition, frequency and presence penalty look at; in 0..2^32, 0 is all tokens. Of these tokens they count the ones in their scope. */
  penalty_window?: number;
  /** The DRY repetition penalty. */
  dry?: { multiplier?: number; base?: number; allowed_length?: number; breakers?: Integers; window?: number };
  /** Bans every token that would complete an n-gram of this size a second time; 0 is off. */
  no_repeat_ngram?: number;
  /** The part of the history whose n-grams `no_repeat_ngram` does not repeat. */
  no_repeat_ngram_scope?: "prompt" | "output" | "both";
  /** How many of the history's last tokens `no_repeat_ngram` looks at; in 0..2^32, 0 is all tokens. An n-gram counts if it lies whole among these tokens. */
  no_repeat_ngram_window?: number;
  /** Ids that `no_repeat_ngram` never bans; in the vocabulary. */
  no_repeat_ngram_exempt_ids?: Integers;
  /** Added to the logits of ids, each named once and in the vocabulary; finite, or -inf for a ban. */
  logit_bias?: readonly (readonly [number, number])[] | Map<number, number> | { readonly [id: number]: number };
  /** Whether `logit_bias` is added before the penalties, which then act on the sum. */
  bias_first?: boolean;
  /** If present, all other ids are banned, so that an empty list bans everything; ids in the vocabulary. */
  allowed_ids?: Integers | null;
  /** Ids that are never drawn; in the vocabulary. */
  banned_ids?: Integers;
  /** Sequences that are never completed, each of at least one id. */
  bad_words?: readonly Integers[];
  /** How many output tokens must exist before one of `stop_ids` may be drawn; without `stop_ids` it does nothing. */
  min_tokens?: number;
  /** The ids that end the output; ending it is the caller's part. */
  stop_ids?: Integers;
  /** A part of the text, such as a model's reasoning, that has a budget of tokens. */
  section?: { open?: Integers; close?: Integers; end?: Integers; budget?: number; min?: number } | null;
  /** What ends an output that repeats itself without end. */
  loops?: { min_period?: number; max_period?: number; min_copies?: number; min_tokens?: number; every?: number; close?: boolean; end?: Integers } | null;
  /** Marks the text for the owner of a secret key; absent: by the pool's default, if any; false: not. The race then draws by that key and the last ids, in the place of the seed. */
  watermark?: { key?: number; context?: number; scope?: "output" | "both"; window?: number } | false | null;
  /** The seed of all draws; absent: fresh entropy for each request, readable afterwards. */
  seed?: Seed | null;
  /** Which logprobs to report; absent: none. In JSON, Python and JavaScript a number n stands for an object whose `top_n` is n. */
  logprobs?: { mode?: "raw" | "edited" | "tempered" | "processed" | "radius" | readonly ["raw" | "edited" | "tempered" | "processed" | "radius", "raw" | "edited" | "tempered" | "processed" | "radius"]; top_n?: number; ids?: Integers } | number | null;
  /** In which order the filters act. */
  order?: "default" | "joint" | "none" | readonly Filter[];
  /** Whether the filters see the row at temperature 1, and only the draw is tempered. */
  temperature_last?: boolean;
}

/** Options of a sampler. */
export interface SamplerOptions {
  /** The ids before the output. */
  prompt?: Integers;
  /** The draw index, which tells sequences of the same seed and history apart; 0 if left out. */
  draw?: number;
  /** The way from logits to a token; "race" if left out. */
  route?: string;
}

/** What comes with one row. */
export interface SampleOptions {
  /** A bitmask: bit `id % 32` of word `id / 32` allows an id; missing words forbid. */
  mask?: Uint32Array | Int32Array | null;
  /** The id to emit whatever is drawn. */
  forced?: number | null;
  /** The caller's own edits. */
  hook?: Hook | null;
  /** What the row holds; "logits" if left out. Probabilities need not sum to 1, and have no hook. */
  kind?: "logits" | "probabilities";
  /** What the words of a Uint16Array are. */
  dtype?: Dtype;
}

/** A sequence in mid-life, which another sampler or pool takes up. */
export interface State {
  /** The ids of the prompt. */
  prompt: Uint32Array;
  /** The ids generated so far. */
  output: Uint32Array;
  /** The seed in use. */
  seed: bigint;
  /** The number of tokens before the next one, modulo 2^32. */
  position: number;
  /** The draw index. */
  draw: number;
  /** Mirostat's limit, in bits, or the mean of adaptive-p. */
  mu: number;
}

/** A token's natural log probability and its rank, 1 for the most likely. */
export interface TokenLogprob {
  id: number;
  logprob: number;
  rank: number;
}

/** The logprobs of a row. */
export interface Logprobs {
  /** Those of the drawn token. */
  token: TokenLogprob;
  /** Those of the most likely tokens, `top_n` of them. */
  top: TokenLogprob[];
  /** Those of the ids that were asked for. */
  ids: TokenLogprob[];
  /** That of the drawn token in the second mode; -Infinity without one. */
  second: number;
}
