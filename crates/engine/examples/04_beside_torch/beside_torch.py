"""Gumball beside torch: its logits, on its current stream, eagerly and in its own CUDA graph.

    cargo build --release -p gumball-engine --example beside_torch
    python crates/engine/examples/04_beside_torch/beside_torch.py target/release/examples/libbeside_torch.so

Nothing waits between torch's kernels and ours: a step reads what torch has enqueued before it, and torch reads the tokens
where they lie. Each step's tokens are compared with those of the pool on the host, from the same logits.
"""

import ctypes
import sys

import torch

VOCAB, ROWS, STEPS = 32_000, 6, 20
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def library(path: str) -> ctypes.CDLL:
    """Loads the library, with the types of its functions."""
    found = ctypes.CDLL(path)
    pointer, size, u64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
    found.gumball_open.argtypes, found.gumball_open.restype = [size, size, size], pointer
    found.gumball_admit.argtypes = [pointer, u64, ctypes.c_float, ctypes.c_int64, ctypes.c_float, ctypes.c_float]
    found.gumball_assign.argtypes = [pointer, size]
    found.gumball_enqueue.argtypes = [pointer, u64, ctypes.c_uint32, size, size]
    found.gumball_before_replay.argtypes = [pointer]
    found.gumball_tokens.argtypes, found.gumball_tokens.restype = [pointer], u64
    found.gumball_host_step.argtypes = [pointer, pointer, size, pointer]
    for name in ("admit", "assign", "enqueue", "before_replay", "host_step"):
        getattr(found, f"gumball_{name}").restype = ctypes.c_int64
    return found


class Pool:
    """A pool on torch's current stream, and its twin on the host."""

    def __init__(self, found: ctypes.CDLL):
        self.found = found
        self.handle = found.gumball_open(torch.cuda.current_stream().cuda_stream, VOCAB, ROWS)
        assert self.handle, "no pool"
        for row in range(ROWS):
            temperature, top_k, top_p, min_p = [
                (0.0, 0, 1.0, 0.0),
                (1.0, 0, 1.0, 0.0),
                (0.8, 50, 0.9, 0.0),
                (1.0, 0, 0.9, 0.0),
                (1.2, 0, 1.0, 0.05),
                (1.0, 0, 0.999, 0.0),
            ][row]
            slot = self.check(found.gumball_admit(self.handle, 7 + row, temperature, top_k, top_p, min_p))
            assert slot == row
        self.check(found.gumball_assign(self.handle, ROWS))
        self.where = {
            "shape": (ROWS,),
            "typestr": "<i4",
            "version": 3,
            "strides": None,
            "data": (found.gumball_tokens(self.handle), False),
        }
        # Torch's view of the tokens where they lie.
        self.tokens = torch.as_tensor(type("Where", (), {"__cuda_array_interface__": self.where})(), device="cuda")

    @staticmethod
    def check(found: int) -> int:
        assert found >= 0, "the step failed"
        return found

    def enqueue(self, logits: torch.Tensor) -> None:
        """Enqueues a step on torch's current stream."""
        address, dtype, stride = logits.data_ptr(), DTYPES[logits.dtype], logits.stride(0)
        self.check(self.found.gumball_enqueue(self.handle, address, dtype, len(logits), stride))

    def on_host(self, logits: torch.Tensor) -> torch.Tensor:
        """Takes the same step on the host."""
        rows, tokens = logits.float().cpu().contiguous(), torch.empty(ROWS, dtype=torch.int32)
        self.check(self.found.gumball_host_step(self.handle, rows.data_ptr(), ROWS, tokens.data_ptr()))
        return tokens


def model(hidden: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Stands in for a model: the next hidden states depend on the tokens, which only the device knows yet."""
    return (hidden + torch.sin(tokens.float())[:, None].to(hidden.dtype) / 3) @ head


def eager(found: ctypes.CDLL, dtype: torch.dtype) -> int:
    """Steps on a stream of torch's that is not the default one; returns how many tokens were compared."""
    with torch.cuda.stream(torch.cuda.Stream()):
        pool = Pool(found)
        hidden = torch.randn(ROWS, 64, device="cuda", dtype=dtype)
        head = torch.randn(64, VOCAB + 8, device="cuda", dtype=dtype)
        seen = []
        for _ in range(STEPS):
            # A view: rows are further apart than they are long.
            logits = model(hidden, head, pool.tokens)[:, :VOCAB]
            pool.enqueue(logits)
            seen.append((logits, pool.tokens.clone()))
        for logits, tokens in seen:
            assert torch.equal(tokens.cpu(), pool.on_host(logits)), "the device's tokens are not the host's"
    return STEPS * ROWS


def captured(found: ctypes.CDLL) -> int:
    """Decodes in a graph that torch captures, with the model in it; returns how many tokens were compared."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        pool = Pool(found)
        hidden, head = torch.randn(ROWS, 64, device="cuda"), torch.randn(64, VOCAB, device="cuda")
        # Warms torch's own kernels up, as its graphs ask for.
        model(hidden, head, pool.tokens)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            logits = model(hidden, head, pool.tokens)
            pool.enqueue(logits)
        for _ in range(STEPS):
            pool.check(found.gumball_before_replay(pool.handle))
            graph.replay()
            assert torch.equal(pool.tokens.cpu(), pool.on_host(logits)), "the device's tokens are not the host's"
    return STEPS * ROWS


def main() -> None:
    torch.manual_seed(1)
    found = library(sys.argv[1])
    for dtype in DTYPES:
        print(f"eager, {str(dtype).removeprefix('torch.')}: {eager(found, dtype)} tokens, the host's")
    print(f"in a graph of torch's: {captured(found)} tokens, the host's")


if __name__ == "__main__":
    main()
