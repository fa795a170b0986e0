"""A record's page: every table that can be made of it, with an explanation of each."""

import families
import figures
import operators
import verifications

# The repository's documents, seen from the page.
DOCS = "../../../docs"

# (Heading, how to read it, the function that makes its text).
SECTIONS = (
    ("Runs", "", figures.source),
    (
        "Steps, every size and type",
        "One call, from logits to tokens, in a CUDA graph; medians in microseconds. `floor` is the time of reading the "
        "logits once at 4576 GB/s.",
        figures.sizes,
    ),
    (
        "The fastest rival of each step",
        "Its time in multiples of ours, f32. `logits`: the rival starts from logits, as we do. `scaled`: from logits that were divided "
        "by the temperature before the clock started. `probabilities`: from the output of a softmax that is not timed. Bold: the "
        "rival is faster.",
        figures.rivals,
    ),
    (
        "Every way of every rival",
        "Times in multiples of ours, f32 unless the heading says otherwise; ours in microseconds.",
        figures.every,
    ),
    ("Calls from the host", "", figures.host),
    (
        "Operators on rows",
        "Softmax, draws from probabilities, rows written, chains of drafts, each without a request. Parameters lie in the "
        "device's memory, one a row; each call writes to another address. A chain has three drafts, and most end at the first: two of its "
        "seven rows are read.",
        operators.operators,
    ),
    (
        "Softmax beside its rivals",
        "The fastest way of each rival, in multiples of our time; bold: the rival is faster. SGLang has one kernel for up to 32 rows "
        "of f32, and that of its pull request 22166.",
        operators.softmaxes,
    ),
    (
        "Draws from probabilities, and rows written, beside rivals",
        "The fastest way of each rival, in multiples of our time; bold: the rival is faster.",
        operators.on_probabilities,
    ),
    (
        "From Python",
        "One eager call and a synchronisation, the device idle before it; the same loop for all.",
        operators.python,
    ),
    (
        "Whole steps from Python",
        "A whole step per call, at several numbers of rows, beside the sampling backend `triton` of TokenSpeed's runtime.",
        operators.whole_calls,
    ),
    (
        "Rows without peaks",
        "`bell`: normal with sigma 2, where top-p 0.9 keeps a third of the vocabulary. `flat`: sigma 0.001, where it keeps nine "
        "tenths. In brackets: how many readings of the rows at 4576 GB/s take as long.",
        figures.flat,
    ),
    (
        "Rows of every family",
        "Median and worst over the families of rows ([which](../README.md#families)), and the least lead over a rival that starts from "
        "logits, with its engine and the family: its time in multiples of ours, bold where the rival is faster. FlashInfer is given the "
        "mixture without penalties and min-p. At 1 row a mixture is timed as each of its requests alone. A time is a mean over many rows "
        "of the family.",
        families.every,
    ),
    (
        "Rivals over rows of every family",
        "Ours in microseconds, then each rival's fastest way that starts from logits, in multiples of it over the same rows; bold: the rival "
        "is faster. `-`: it has no such way, or was not measured. FlashInfer is given the mixture without penalties and min-p.",
        families.each,
    ),
    (
        "Verifications of drafts",
        "One call judges the drafts of each request, of which hardly any is accepted. Ours in microseconds; rivals in multiples of ours, bold "
        "where they are faster. Ratio tests of rivals, but vLLM's, need probabilities, so a softmax and renormalisations are in their time, and have "
        "no penalties and no min-p. Two are given a drafter's probabilities, all on its drafts.",
        verifications.table,
    ),
    (
        "The curve over batch sizes",
        f"![microseconds by rows]({DOCS}/pictures/batch.svg)\n\n"
        "A jump is a size that takes 4 % more than the one before beyond what reading its further rows explains, or 2 % less, in medians "
        "of five neighbouring sizes.",
        figures.jumps,
    ),
    (
        "Each kernel alone, by a profiler",
        "Caches cold, clocks not fixed (`ci/gpu profile`). Kernels of one step overlap otherwise, so these times add up to more than the "
        "step's. Reads: bytes from memory over bytes of the rows. A tile is 256 logits. Local requests: warps that read or write "
        "the stack, where registers spill. Stalls: what warps wait for, as shares of the cycles between two instructions of a warp. "
        "Kernels have the names of the profiled commit.",
        figures.kernels,
    ),
)


def page(record, profile, name):
    """The page of the record of this file name."""
    settings = record.whole["settings"]
    text = [
        f"# {name.removesuffix('.json')}\n",
        f"Generated by `proof/bench/gpu/document` from [the record]({name}), which has every value; do not edit. How times are taken is "
        f"in [bench](../README.md#on-a-gpu), what bounds them in [performance]({DOCS}/performance.md).\n",
        f"Temperature {settings['temperature']}, top-k {settings['top_k']}, top-p {settings['top_p']}, min-p {settings['min_p']}; rows "
        "like a model's unless a table says otherwise; inputs cold: batches rotate through at least "
        f"{settings['cold_bytes'] >> 20} MiB.\n",
    ]
    for heading, how, table in SECTIONS:
        text += [f"## {heading}\n", *([f"{how}\n"] if how else []), table(record, profile)]
    return "\n".join(part.rstrip("\n") + "\n" for part in text)
