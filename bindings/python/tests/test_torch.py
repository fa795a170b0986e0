"""torch on the CPU: tensors in and out, what is no dense tensor, older torch, and what torch compiles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gumball
from gumball import Batch, Pool, Sampler, SamplingParams

torch = pytest.importorskip("torch")

VOCAB = 900


def pool(device: str = "cpu") -> tuple[Pool, list[int]]:
    made = Pool(VOCAB, device=device, slots=8, rows=8)
    return made, [made.admit(SamplingParams(seed=seed, top_p=0.9)) for seed in range(7)]


@pytest.fixture
def wanted(batch: np.ndarray) -> list[int]:
    made, slots = pool()
    return made.step(batch, slots).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_of_every_type(dtype: Any, batch: np.ndarray, wanted: list[int]) -> None:
    rows = torch.from_numpy(batch).to(dtype)
    wide = torch.full((7, VOCAB + 8), torch.inf, dtype=dtype)
    wide[:, 3 : VOCAB + 3] = rows
    for logits in (rows, torch.nn.Parameter(rows), wide[:, 3 : VOCAB + 3]):
        made, slots = pool()
        assert made.step(logits, torch.tensor(slots)).tolist() == wanted
    assert Sampler(SamplingParams(seed=0, top_p=0.9), VOCAB).sample(rows[0]) == wanted[0]


def test_masks_and_lists_are_tensors_too(batch: np.ndarray) -> None:
    made, slots = pool()
    masks = torch.zeros((7, 29), dtype=torch.int32)
    masks[:, 2] = 1 << 3
    out = made.step(
        torch.from_numpy(batch),
        Batch(
            torch.tensor(slots, dtype=torch.int32),
            masks=masks,
            mask_present=torch.tensor([True] * 6 + [False]),
            forced=torch.tensor([-1] * 5 + [9, -1]),
            row_indices=torch.zeros(7, dtype=torch.int64),
        ),
    )
    assert out.tolist()[:6] == [67] * 5 + [9] and out.tolist()[6] >= 0
    # Outputs are tensors without a copy, and tensors of any integer type are lists of integers.
    torch.from_numpy(out.tokens)[0] = 11
    assert out.tolist()[0] == 11
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.uint64):
        ids = torch.tensor([1, 2, 1], dtype=dtype)
        assert list(Sampler(SamplingParams(stop_ids=ids), VOCAB, prompt=ids).state.prompt) == [1, 2, 1]


def test_what_has_no_dense_memory_is_told(batch: np.ndarray, wanted: list[int]) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    made, slots = pool()
    with FakeTensorMode():
        fake = torch.empty(7, VOCAB)
    for bad, text in (
        (torch.zeros(7, VOCAB).to_sparse(), "rows cannot be read|must be dense"),
        (torch.zeros(7, VOCAB, device="meta"), "rows cannot be read|has no memory"),
        (fake, "rows has no memory"),
        (torch.masked.masked_tensor(torch.zeros(7, VOCAB), torch.ones(7, VOCAB) > 0), "rows must be .* without masked"),
    ):
        with pytest.raises(TypeError, match=text):
            made.step(bad, slots)
    assert made.step(batch, slots).tolist() == wanted


def test_a_tensor_of_several_processes_is_told(batch: np.ndarray) -> None:
    import torch.distributed
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.tensor import Shard, distribute_tensor
    except ImportError:  # torch 2.4
        from torch.distributed._tensor import Shard, distribute_tensor

    made, slots = pool()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        rows = distribute_tensor(torch.from_numpy(batch), init_device_mesh("cpu", (1,)), [Shard(1)])
        with pytest.raises(TypeError, match=r"rows must be .* full_tensor\(\), or to_local\(\) .*, not DTensor"):
            made.step(rows, slots)
    finally:
        torch.distributed.destroy_process_group()


def test_older_torch_is_read_by_its_attributes(batch: np.ndarray, wanted: list[int], tmp_path: Path) -> None:
    np.save(tmp_path / "batch.npy", batch)
    program = f"""
import numpy as np, torch
if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    del torch.Tensor.__dlpack_c_exchange_api__
from gumball import Pool, SamplingParams
pool = Pool({VOCAB}, slots=8)
slots = [pool.admit(SamplingParams(seed=seed, top_p=0.9)) for seed in range(7)]
rows = torch.from_numpy(np.load("batch.npy"))
wide = torch.zeros(7, 1000, dtype=torch.bfloat16)
wide[:, :{VOCAB}] = rows
assert pool.step(wide[:, :{VOCAB}], torch.tensor(slots)).tolist() == {wanted}
for bad in (rows.double(), rows.to_sparse(), rows.to("meta")):
    try:
        pool.step(bad, slots)
    except (TypeError, ValueError) as error:
        print(error)
    else:
        raise AssertionError(bad)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_emulated_device_lends_its_tokens(batch: np.ndarray, wanted: list[int]) -> None:
    from conftest import DEVICES

    if "emulated" not in DEVICES:
        pytest.skip("no emulator")
    made, slots = pool("emulated")
    made.assign(slots)
    tokens = torch.from_dlpack(made.on_device().outputs("tokens"))
    made.enqueue([gumball.Step(torch.from_numpy(batch))])
    assert (
        tokens.tolist() == wanted
        and tokens.data_ptr() == torch.from_dlpack(made.on_device().outputs("tokens")).data_ptr()
    )


def test_a_loan_may_end_within_a_call(batch: np.ndarray) -> None:
    """torch frees memory without the GIL, also where the garbage collector runs while a call of ours makes a list."""
    from conftest import DEVICES

    if "emulated" not in DEVICES:
        pytest.skip("no emulator")
    sampler = Sampler(SamplingParams(seed=0), VOCAB)
    for _ in range(20):
        # The tensor alone keeps its pool.
        held = [torch.from_dlpack(pool("emulated")[0].on_device().outputs("tokens"))]
        sampler.sample(batch[0], hook=lambda logits, held=held: held.clear())
        assert not held


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_step_stands_in_what_torch_compiles(backend: str, batch: np.ndarray, wanted: list[int]) -> None:
    from gumball.torch import PoolStep

    made, slots = pool()
    made.assign(slots)
    draw = PoolStep(made)

    @torch.compile(backend=backend, fullgraph=True)  # type: ignore[untyped-decorator]
    def decode(logits: Any) -> Any:
        return draw(logits * 1.0).long() + 1

    assert (decode(torch.from_numpy(batch)) - 1).tolist() == wanted
    again, others = pool()
    both = [again.step(batch, others).tolist() for _ in range(2)]
    assert (decode(torch.from_numpy(batch)) - 1).tolist() == both[1]
    torch.library.opcheck(
        torch.ops.gumball.enqueue.default,
        (torch.from_numpy(batch), torch.zeros(7, dtype=torch.int32), draw.number),
        test_utils=("test_schema", "test_faketensor"),
    )
