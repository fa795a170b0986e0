"""What is measured on a GPU, most important first, and how much of a run's time is left."""

import time
from dataclasses import dataclass, replace

import drafts

# Steps, from logits to tokens. Rivals have ways for all but the last two.
TASKS = ("greedy", "plain", "min-p", "top-k-top-p", "top-k-top-p-min-p", "top-p", "penalties", "full")
# Steps over rows of every family, and the families, the most revealing first: as crates/cuda/examples/replay has them.
FAMILY_TASKS = (
    *"mixture top-p-95 top-k-top-p-t1 top-k-1000 top-k-1000-top-p joint greedy plain min-p top-k-top-p top-p".split(),
    *"top-k-300-top-p top-k-20000 top-k-40000".split(),
    *"repetition-top-p everything".split(),
    # Of ours alone.
    *"epsilon top-n-sigma xtc mirostat typical eta dynamic-temperature mixture-everything".split(),
    # Draws from probabilities.
    *"probs-plain probs-top-p probs-top-k-top-p probs-top-p-99 probs-top-k-1000 probs-joint-1000".split(),
)
LIKES = tuple(
    "model bell zipf-1 zipf-1.5 ties heaps flat equal model-t2 bell-1 bell-4 zipf-0.8 zipf-2.5 model-t0.5 real real-t0.5 real-t2".split()
)
FAMILY_ROWS = (1, 32, 128, 512)
# Verifications of drafts: what rows ask for, the numbers of requests, and the most rows that one verification has.
VERIFIED, VERIFIED_REQUESTS, MOST_VERIFIED = ("plain", "top-k-top-p", "mixture", "greedy"), (1, 8, 32, 128), 1200
VERIFICATIONS = tuple(f"{drafts.PREFIX}{name}-{shape.name}" for shape in drafts.SHAPES for name in VERIFIED)
# Whole calls from the host: tasks, numbers of rows and vocabularies.
WHOLE_CALLS, HOST_ROWS, HOST_VOCABS = ("greedy", "plain", "top-k-top-p", "top-p"), (1, 8, 32), (151936, 32768)
VOCABS = (151936, 128256, 32768, 262144)
ROWS = (1, 8, 32, 128, 512)
# At one vocabulary: rows without peaks, where filters shorten nothing; whole steps of the engine; the curve over sizes.
MAIN_VOCAB = 151936
FLAT, FLAT_TASKS = ("bell", "flat"), ("top-p", "top-k-5000")
CURVE_TASKS, CURVE_DTYPE = ("greedy", "plain", "top-k-top-p-min-p", "top-p"), "f32"

# Operators on rows, without requests: what writes rows, what draws from probabilities, and a chain of drafts a row.
SOFTMAXES = ("softmax", "softmax-in-place", "softmax-mixed")
DRAWS = (
    *"probs-plain probs-top-k probs-top-p probs-min-p probs-top-k-top-p probs-joint".split(),
    *"probs-top-p-99 probs-top-k-1000 probs-joint-1000".split(),
)
WRITES = ("top-k-renorm", "top-p-renorm", "top-k-top-p-renorm", "joint-renorm", "top-k-mask")
OPERATORS = (*SOFTMAXES, *DRAWS, *WRITES, "chain")
DRAFTS, MOST_CHAINS = 3, 128
# The shapes at which they are measured: (vocabulary, type, tasks). Our program is started once for each group of tasks: a failure costs no more.
OPERATOR_SHAPES = (
    (151936, "f32", OPERATORS),
    (128256, "bf16", SOFTMAXES),
    (32000, "bf16", SOFTMAXES),
    (128256, "f32", SOFTMAXES),
    (32000, "f32", SOFTMAXES),
    (151936, "bf16", SOFTMAXES),
    (128256, "f32", OPERATORS[len(SOFTMAXES) :]),
    (32000, "f32", OPERATORS[len(SOFTMAXES) :]),
    (262144, "f32", SOFTMAXES),
    (151936, "f16", SOFTMAXES),
    (32000, "f16", SOFTMAXES),
    (524288, "f32", SOFTMAXES),
)
GROUPS = (SOFTMAXES, DRAWS, WRITES[:2], WRITES[2:], ("chain",))

TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.8, 50, 0.9, 0.05
# The temperatures that the rows of `softmax-mixed` have in turn.
TEMPERATURES = (0.3, 0.7, 0.8, 1.0, 1.3, 2.0)
HISTORY, BIASES = 2048, 64


@dataclass(frozen=True)
class Params:
    """The parameters of a row; a parameter that is not named is off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    frequency: float = 0.0
    # Whether top-p takes its mass from the whole row, not from what top-k left.
    joint: bool = False
    bias: bool = False
    logprob: bool = False

    def penalised(self):
        return self.repetition != 1 or self.frequency != 0

    def edited(self):
        return self.penalised() or self.bias

    def without(self, *names):
        """These, with some of them off."""
        return replace(self, **{name: getattr(Params, name) for name in names})

    def of_one(self):
        """These, or for a greedy row top-k 1: so engines ask for it whose kernels divide by the temperature."""
        return self if self.temperature else replace(self, temperature=1.0, top_k=1)


MIXTURE = (
    Params(temperature=0.0),
    Params(temperature=0.7, top_p=0.9),
    Params(top_k=40, top_p=0.95),
    Params(),
    Params(min_p=0.05),
    Params(top_p=0.99),
    Params(repetition=1.1, top_p=0.8),
    Params(frequency=0.5, top_p=0.9),
)
# What rows ask for in turn, of tasks that rivals have ways for.
REQUESTS = {
    "greedy": (Params(temperature=0.0),),
    "plain": (Params(TEMPERATURE),),
    "min-p": (Params(TEMPERATURE, min_p=MIN_P),),
    "top-k-top-p": (Params(TEMPERATURE, TOP_K, TOP_P),),
    "top-k-top-p-min-p": (Params(TEMPERATURE, TOP_K, TOP_P, MIN_P),),
    "top-p": (Params(TEMPERATURE, top_p=TOP_P),),
    "top-k-top-p-t1": (Params(top_k=TOP_K, top_p=TOP_P),),
    "top-p-95": (Params(top_p=0.95),),
    "top-k-300-top-p": (Params(top_k=300, top_p=0.97),),
    "top-k-1000": (Params(top_k=1000),),
    "top-k-20000": (Params(top_k=20000),),
    "top-k-40000": (Params(top_k=40000),),
    "top-k-1000-top-p": (Params(top_k=1000, top_p=0.95),),
    "joint": (Params(top_k=1000, top_p=0.95, joint=True),),
    "mixture": MIXTURE,
    "repetition-top-p": (Params(repetition=1.1, top_p=0.95),),
    "everything": (Params(repetition=1.1, top_p=0.95, bias=True, logprob=True),),
    **{f"mixture-{index}": (params,) for index, params in enumerate(MIXTURE)},
    # Operators on probabilities.
    "probs-plain": (Params(TEMPERATURE),),
    "probs-top-k": (Params(TEMPERATURE, TOP_K),),
    "probs-top-p": (Params(TEMPERATURE, top_p=TOP_P),),
    "probs-min-p": (Params(TEMPERATURE, min_p=MIN_P),),
    "probs-top-k-top-p": (Params(TEMPERATURE, TOP_K, TOP_P),),
    "probs-joint": (Params(TEMPERATURE, TOP_K, TOP_P, joint=True),),
    "probs-top-p-99": (Params(TEMPERATURE, top_p=0.99),),
    "probs-top-k-1000": (Params(TEMPERATURE, 1000),),
    "probs-joint-1000": (Params(TEMPERATURE, 1000, 0.95, joint=True),),
    "softmax-mixed": tuple(Params(temperature) for temperature in TEMPERATURES),
}


def request(task):
    """What the rows of a task ask for in turn; of an operator that has no requests, the temperature."""
    task, _ = drafts.split(task)
    return REQUESTS.get(task, (Params(TEMPERATURE, TOP_K, TOP_P, MIN_P),))


def column(request, name, rows):
    """A parameter of each row."""
    return [getattr(request[row % len(request)], name) for row in range(rows)]


def rows_each(task):
    """How many rows of logits a task has for each row that it is asked with: for a request with drafts, several."""
    _, judged = drafts.split(task)
    return judged.nodes if judged else 1


def alone(task):
    """Whether a task is one of the mixture's requests, which are timed alone where there are fewer rows."""
    return task.startswith("mixture-") and task in REQUESTS


BYTES = {"f32": 4, "bf16": 2, "f16": 2}
# Every call of a graph reads another batch of rows, and together they are at least as many bytes: several times the
# second-level cache, so that no call finds its rows there.
COLD_BYTES = 400 << 20
# Replays of a graph: the many, unless one takes longer than LONG_US; then the few.
MOST_REPLAYS, FEWEST_REPLAYS, LONG_US = 20, 12, 30_000
# Replays of rivals' graphs over rows of every family, of which there are many.
FAMILY_REPLAYS = 6
# Single calls, each with a synchronisation, at one row.
EAGER_CALLS = 60

FIELDS = {
    "engine": "the program",
    "task": "what is asked: all but greedy draw at temperature 0.8; top-k 50, top-p 0.9, min-p 0.05; penalties: "
    "repetition, frequency and presence over 2048 ids and 64 biases; full: penalties, a bitmask, top-k, top-p, min-p "
    "and the token's raw logprob; edited: repetition penalty, n-grams, top-k, top-p and the token's raw logprob; "
    "softmax: to f32 in another place; softmax-in-place: to the logits' own type; softmax-mixed: to f32, each row at another "
    "temperature; probs-..: a draw from probabilities, joint is top-k and top-p of the whole row; ..-renorm, top-k-mask: rows written; "
    "chain: 3 drafts a row; verify-..: a verification of drafts by logits, what its rows ask for, and the drafts of each request, a chain or "
    "a binary tree of so many, of which hardly any is accepted; mixture: the rows take eight requests in turn, mixture-0 to mixture-7 are these alone; what these and "
    "others ask for stands in proof/bench/README.md, at temperature 1",
    "does": "what a call does; ours: step is the operator alone; the rest are whole steps of the engine and parts of them, eager with the fetch of what they come to; "
    "of verifications: the rule and how many drafts are accepted, or a step over as many rows, each of another request",
    "given": "what a call reads: logits, logits already divided by the temperature (scaled), or probabilities; drafts: "
    "probabilities of a drafter, its tokens, and the target's probabilities",
    "vocab": "tokens of a row",
    "dtype": "type of a logit",
    "rows": "rows of a call; of a verification the requests, each with a row more than it has drafts",
    "rows_like": "the family of the rows; model: sigma 2, 20 tokens raised by 6 to 14; bell: sigma 2 alone, or the sigma named; flat: "
    "sigma 0.001; zipf: minus the exponent named times the logarithm of the rank; heaps: 300 tokens near 8 and 3000 at 5 above sigma 1; "
    "ties: bell, rounded to eighths; equal: one value; real: recorded rows; -t: what the family is at the temperature named",
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
    """How many batches of rows are cold together; at least four."""
    return max(4, -(-COLD_BYTES // (vocab * rows * bytes_per_token)))


def rows_of(task, rows, modes=("eager", "graph")):
    """The numbers of rows at which a task is measured; calls from the host alone are of one row, except for some tasks."""
    if "graph" not in modes and task not in WHOLE_CALLS:
        return [1]
    if task == "chain":
        return [count for count in rows if count <= MOST_CHAINS]
    if alone(task):
        return [count for count in rows if count < len(MIXTURE)]
    rows = [count for count in rows if rows_each(task) == 1 or count * rows_each(task) <= MOST_VERIFIED]
    of_several = drafts.split(task)[0] in ("mixture", "mixture-everything")
    return [count for count in rows if count >= len(MIXTURE) or not of_several]


def of_samples(times):
    """The median and the 95th percentile, as `replay` of crates/cuda has them."""
    times = sorted(times)
    return {"median_us": times[len(times) // 2], "p95_us": times[len(times) * 19 // 20], "samples": len(times)}
