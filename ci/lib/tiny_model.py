"""Writes a model of random weights that `gumball` runs: ``python3 ci/lib/tiny_model.py FILE``. A few megabytes of GGUF, the same each time.

It writes nonsense; but it is a Llama with a tokenizer, and its logits are as spread as a model's. So a machine that no
real model reaches can still compare what `gumball generate` writes on one device and on another.
"""

import itertools
import random
import struct
import sys
from array import array

# No multiple of a tile (256), so that rows end within one and lie at every alignment of four bytes.
VOCAB = 12_345
BLOCKS, HIDDEN, HEADS, KV_HEADS, FEED_FORWARD, CONTEXT = 2, 64, 4, 2, 128, 4096
# How far logits are spread: the deviation of an embedding's elements.
SPREAD = 0.35

# GGUF's numbers for types of values and of tensors, and of tokens.
U32, F32, STRING, ARRAY, I32, BOOL = 4, 6, 8, 9, 5, 7
TENSOR_F32, ALIGNMENT = 0, 32
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(kind, it):
    if kind == STRING:
        return text(it)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], it)


def entry(key, kind, it):
    if isinstance(it, list):
        head = struct.pack("<IIQ", ARRAY, kind, len(it))
        return text(key) + head + b"".join(value(kind, one) for one in it)
    return text(key) + struct.pack("<I", kind) + value(kind, it)


def tokens():
    """Special tokens, bytes, and words of one to three syllables, each with its kind."""
    listed = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    listed += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    letters = list("\u2581.,abdefgiklmnoprstuvz")
    words = itertools.chain.from_iterable(
        (mark + "".join(word) for mark in ("\u2581", "") for word in itertools.product(syllables, repeat=count))
        for count in (1, 2, 3)
    )
    listed += [(word, NORMAL) for word in itertools.islice(itertools.chain(letters, words), VOCAB - len(listed))]
    return listed


def metadata(listed):
    return [
        entry("general.architecture", STRING, "llama"),
        entry("general.name", STRING, "tiny"),
        entry("llama.block_count", U32, BLOCKS),
        entry("llama.embedding_length", U32, HIDDEN),
        entry("llama.feed_forward_length", U32, FEED_FORWARD),
        entry("llama.attention.head_count", U32, HEADS),
        entry("llama.attention.head_count_kv", U32, KV_HEADS),
        entry("llama.context_length", U32, CONTEXT),
        entry("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        entry("tokenizer.ggml.model", STRING, "llama"),
        entry("tokenizer.ggml.tokens", STRING, [token for token, _ in listed]),
        entry("tokenizer.ggml.token_type", I32, [kind for _, kind in listed]),
        entry("tokenizer.ggml.scores", F32, [-float(place) for place in range(len(listed))]),
        entry("tokenizer.ggml.unknown_token_id", U32, 0),
        entry("tokenizer.ggml.bos_token_id", U32, 1),
        entry("tokenizer.ggml.eos_token_id", U32, 2),
    ]


def shapes():
    """Names and shapes of all tensors, rows first."""
    narrow = HIDDEN // HEADS * KV_HEADS
    yield "token_embd.weight", (VOCAB, HIDDEN)
    yield "output_norm.weight", (HIDDEN,)
    for block in range(BLOCKS):
        for name, shape in {
            "attn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (narrow, HIDDEN),
            "attn_v": (narrow, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (FEED_FORWARD, HIDDEN),
            "ffn_up": (FEED_FORWARD, HIDDEN),
            "ffn_down": (HIDDEN, FEED_FORWARD),
        }.items():
            yield f"blk.{block}.{name}.weight", shape


def main(path):
    generator, heads, data = random.Random(3), [], bytearray()
    for name, shape in shapes():
        sizes = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        heads.append(text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", TENSOR_F32, len(data)))
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        deviation, mean = (SPREAD, 0.0) if len(shape) == 2 else (0.1, 1.0)
        data += array("f", (generator.gauss(mean, deviation) for _ in range(count))).tobytes()
        data += bytes(-len(data) % ALIGNMENT)
    entries = metadata(tokens())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(heads), len(entries)) + b"".join(entries) + b"".join(heads)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT) + data)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.byteorder != "little":
        sys.exit("usage, on a little-endian machine: python3 ci/lib/tiny_model.py FILE")
    main(sys.argv[1])
