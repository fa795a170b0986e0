"""What is measured on a GPU, most important first, and how much of a run's time is left."""

import time

# Steps, from logits to tokens. Rivals have ways for all but the last two.
TASKS = ("greedy", "plain", "min-p", "top-k-top-p", "top-k-top-p-min-p", "top-p", "penalties", "full")
VOCABS = (151936, 128256, 32768, 262144)
ROWS = (1, 8, 32, 128, 512)
# At one vocabulary: rows without peaks, where filters shorten nothing; whole steps of the engine; the curve over sizes.
MAIN_VOCAB = 151936
FLAT, FLAT_TASKS = ("bell", "flat"), ("top-p", "top-k-5000")
CURVE_TASKS, CURVE_DTYPE = ("greedy", "plain", "top-k-top-p-min-p", "top-p"), "f32"

# Operators on rows, without requests: what writes rows, what draws from probabilities, and a chain of drafts a row.
SOFTMAXES = ("softmax", "softmax-in-place")
DRAWS = ("probs-plain", "probs-top-k", "probs-top-p", "probs-min-p", "probs-top-k-top-p", "probs-joint")
WRITES = ("top-k-renorm", "top-p-renorm", "top-k-mask")
OPERATORS = (*SOFTMAXES, *DRAWS, *WRITES, "chain")
DRAFTS, MOST_CHAINS = 3, 128
# What is measured of them: (vocabulary, type, tasks). Our program is started once for each group of tasks: a failure costs no more.
OPERATOR_SHAPES = (
    (151936, "f32", OPERATORS),
    (128256, "bf16", SOFTMAXES),
    (32000, "bf16", SOFTMAXES),
    (128256, "f32", SOFTMAXES),
    (32000, "f32", SOFTMAXES),
    (151936, "bf16", SOFTMAXES),
    (128256, "f32", OPERATORS[2:]),
    (32000, "f32", OPERATORS[2:]),
    (262144, "f32", SOFTMAXES),
)
GROUPS = (SOFTMAXES, DRAWS, WRITES[:2], WRITES[2:], ("chain",))

TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.8, 50, 0.9, 0.05

BYTES = {"f32": 4, "bf16": 2, "f16": 2}
# Every call of a graph reads another batch of rows, and together they are at least as many bytes: several times the
# second-level cache, so that no call finds its rows there.
COLD_BYTES = 400 << 20
# Replays of a graph: the many, unless one takes longer than LONG_US; then the few.
MOST_REPLAYS, FEWEST_REPLAYS, LONG_US = 20, 12, 30_000
# Single calls, each with a synchronisation, at one row.
EAGER_CALLS = 60

FIELDS = {
    "engine": "the program",
    "task": "what is asked: all but greedy draw at temperature 0.8; top-k 50, top-p 0.9, min-p 0.05; penalties: "
    "repetition, frequency and presence over 2048 ids and 64 biases; full: penalties, a bitmask, top-k, top-p, min-p "
    "and the token's raw logprob; edited: repetition penalty, n-grams, top-k, top-p and the token's raw logprob; "
    "softmax: to f32 in another place; softmax-in-place: to the logits' own type; probs-..: a draw from probabilities, joint "
    "is top-k and top-p of the whole row; top-k-renorm, top-p-renorm, top-k-mask: rows written; chain: 3 drafts a row",
    "does": "what a call does; ours: step is the operator alone; the rest are whole steps of the engine and parts of them, eager with the fetch of what they come to",
    "given": "what a call reads: logits, logits already divided by the temperature (scaled), or probabilities; drafts: "
    "probabilities of a drafter, its tokens, and the target's probabilities",
    "vocab": "tokens of a row",
    "dtype": "type of a logit",
    "rows": "rows of a call",
    "rows_like": "model: sigma 2, 20 tokens raised by 6 to 14; bell: sigma 2 alone; flat: sigma 0.001",
    "mode": "graph: calls in a CUDA graph, device time; eager: one call from the host and a synchronisation, host time; "
    "host: host time of one call that waits for nothing",
    "median_us": "microseconds a call, median over `samples`",
    "p95_us": "microseconds a call, 95th percentile over `samples`",
    "samples": "replays of the graph, or calls from the host",
    "calls": "calls in the graph, each of other rows",
    "objection": "why the answer cannot be right, if it cannot; tables leave the result out",
}


class Budget:
    """The seconds of a run. Nothing is started that they do not cover."""

    def __init__(self, seconds, now=time.monotonic):
        self.seconds, self.now, self.began = seconds, now, now()

    def spent(self):
        return self.now() - self.began

    def left(self):
        return self.seconds - self.spent()


def batches(vocab, rows, bytes_per_token=4):
    """How many batches of rows are cold together; at least two."""
    return max(2, -(-COLD_BYTES // (vocab * rows * bytes_per_token)))


def rows_of(task, rows):
    return [count for count in rows if task != "chain" or count <= MOST_CHAINS]


def of_samples(times):
    """The median and the 95th percentile, as `replay` of crates/cuda has them."""
    times = sorted(times)
    return {"median_us": times[len(times) // 2], "p95_us": times[len(times) * 19 // 20], "samples": len(times)}
