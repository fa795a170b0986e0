"""What the examples ask of each engine, and how they show that a request's text does not hang on its batch."""

from gumball import Dry, SamplingParams

REQUESTS = [
    ("The sky is", SamplingParams(temperature=0.8, top_p=0.9, seed=7)),
    ("Once upon a time", SamplingParams(min_p=0.1, xtc_probability=0.5, seed=8)),
    ("def fibonacci(n):", SamplingParams(temperature=0.8, dry=Dry(0.8), seed=9)),
]


def compare(texts):
    """texts: returns what requests write in a batch."""
    together = texts(REQUESTS)
    for (prompt, _), text in zip(REQUESTS, together):
        print(repr(prompt + text))
    print("the same alone:", [texts([one])[0] for one in REQUESTS] == together)
