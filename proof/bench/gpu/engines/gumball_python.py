"""Our Python package, from the host: a pool's step, the operators on rows, and the same under FlashInfer's names."""

import functools

import gumball
import plan
from engines import surface
from engines.surface import way
from measure import Way

try:
    from gumball_compat.flashinfer import sampling as compat
except ImportError:
    compat = None

TRITON = False
DRAW = {"seed": 1, "position": 9}
# How many steps of a pool are timed at most.
STEPS = 1024


def version():
    return gumball.__version__


def step(rows, vocab, **params):
    pool = gumball.Pool(vocab, device="cuda:0", slots=rows, rows=rows, history_growth=STEPS)
    params = gumball.SamplingParams(**params)
    pool.assign([pool.admit(params) for _ in range(rows)])

    def call(logits):
        pool.enqueue([gumball.Step(logits)])
        return pool.on_device().outputs("tokens")

    return call


def steps():
    temperature, k, p, min_p = plan.TEMPERATURE, plan.TOP_K, plan.TOP_P, plan.MIN_P
    asked = {
        "greedy": {"temperature": 0.0},
        "plain": {"temperature": temperature},
        "min-p": {"temperature": temperature, "min_p": min_p},
        "top-k-top-p": {"temperature": temperature, "top_k": k, "top_p": p},
        "top-k-top-p-min-p": {"temperature": temperature, "top_k": k, "top_p": p, "min_p": min_p},
        "top-p": {"temperature": temperature, "top_p": p},
    }
    return [Way(task, "Pool.enqueue", functools.partial(step, **params)) for task, params in asked.items()]


def softmax(logits, to):
    return gumball.softmax(logits, to.temperature)


def softmax_in_place(logits, to):
    return gumball.softmax(logits, to.temperature, out=logits)


def chain(batch, to):
    draft_probs, drafts, target_probs, _ = batch
    return gumball.judge(draft_probs, drafts, target_probs, **DRAW).tokens


def operators():
    def drawn(task, **named):
        def call(probs, to):
            columns = {parameter: getattr(to, name) for parameter, name in named.items()}
            return gumball.sample(probs, kind="probabilities", **columns, **DRAW)

        return way(task, "sample", call, given="probabilities")

    def both(**order):
        return lambda probs, to: gumball.probabilities(probs, kind="probabilities", top_k=to.k, top_p=to.p, **order)

    def joint(probs, to):
        return gumball.sample(probs, kind="probabilities", top_k=to.k, top_p=to.p, order="joint", **DRAW)

    probs, types = "probabilities", ("f32", "bf16", "f16")
    return [
        way("softmax", "softmax", softmax, dtypes=types),
        way("softmax-mixed", "softmax", softmax, dtypes=types),
        way("softmax-in-place", "softmax(out=logits)", softmax_in_place, dtypes=types, in_place=True),
        drawn("probs-plain"),
        drawn("probs-top-k", top_k="k"),
        drawn("probs-top-p", top_p="p"),
        drawn("probs-min-p", min_p="min_p"),
        drawn("probs-top-k-top-p", top_k="k", top_p="p"),
        way("probs-joint", "sample", joint, given=probs),
        way(
            "top-k-renorm",
            "probabilities",
            lambda x, to: gumball.probabilities(x, kind="probabilities", top_k=to.k),
            given=probs,
        ),
        way(
            "top-p-renorm",
            "probabilities",
            lambda x, to: gumball.probabilities(x, kind="probabilities", top_p=to.p),
            given=probs,
        ),
        way("top-k-top-p-renorm", "probabilities", both(), given=probs),
        way("joint-renorm", "probabilities", both(order="joint"), given=probs),
        way("top-k-mask", "mask_logits", lambda x, to: gumball.mask_logits(x, top_k=to.k)),
        way("chain", "judge", chain, given="drafts"),
    ]


def ways():
    return steps() + operators() + (surface.operators(compat, False, "compat.flashinfer: ") if compat else [])
