"""Pipes of processors: what they refuse, what they fuse, and that they are the functions they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from float64 import softmax64

torch = pytest.importorskip("torch")

from gumball_compat.flashinfer import sampling
from gumball_compat.flashinfer.logits_processor import (
    CompileError,
    Compiler,
    FusionRule,
    LegalizationError,
    LogitsPipe,
    LogitsProcessor,
    MinP,
    Op,
    ParameterizedOp,
    Sample,
    Softmax,
    TaggedTensor,
    Temperature,
    TensorType,
    TopK,
    TopP,
    compile_pipeline,
    legalize_processors,
)

PROBS, LOGITS = TensorType.PROBS, TensorType.LOGITS
BOTH: dict[str, Any] = {"top_k": 40, "top_p": 0.5}
BOTH_OF_PROBS, JOINT = "top_k_top_p_sampling_from_probs", TopK(joint_topk_topp=True)


@pytest.fixture
def logits(batch: np.ndarray) -> Any:
    return torch.from_numpy(batch)


@pytest.fixture
def probs(batch: np.ndarray) -> Any:
    return torch.from_numpy(softmax64(batch).astype(np.float32))


def generators() -> list[Any]:
    return [torch.Generator().manual_seed(3) for _ in range(4)]


# Processors, the type they take, the operators they are, fused, the parameters of a call, and the function that it is, if there is one.
PIPES: list[tuple[list[Any], Any, str, str, dict[str, Any], str]] = [
    (
        [Temperature(), Softmax()],
        None,
        "Temperature Softmax",
        "FusedTemperatureSoftmax",
        {"temperature": 0.7},
        "softmax",
    ),
    ([TopK()], LOGITS, "LogitsTopK", "LogitsTopK", {"top_k": 9}, "top_k_mask_logits"),
    ([TopK()], PROBS, "ProbsTopK", "ProbsTopK", {"top_k": 9}, "top_k_renorm_probs"),
    ([TopP()], None, "TopP", "TopP", {"top_p": 0.8}, "top_p_renorm_probs"),
    ([MinP()], None, "MinP", "MinP", {"min_p": 0.1}, ""),
    ([Sample()], LOGITS, "LogitsSample", "LogitsSample", {}, "sampling_from_logits"),
    ([Sample()], PROBS, "ProbsSample", "ProbsSample", {}, "sampling_from_probs"),
    ([Softmax(), Sample()], LOGITS, "Softmax ProbsSample", "Softmax ProbsSample", {}, "sampling_from_logits"),
    *(
        (
            [one, Sample()],
            PROBS,
            f"{op} ProbsSample",
            f"FusedProbs{name}Sample",
            {field: value},
            f"{field}_sampling_from_probs",
        )
        for one, op, name, field, value in (
            (TopK(), "ProbsTopK", "TopK", "top_k", 9),
            (TopP(), "TopP", "TopP", "top_p", 0.8),
            (MinP(), "MinP", "MinP", "min_p", 0.1),
        )
    ),
    (
        [TopK(), TopP(), Sample()],
        PROBS,
        "ProbsTopK TopP ProbsSample",
        "ProbsTopK FusedProbsTopPSample",
        BOTH,
        BOTH_OF_PROBS,
    ),
    ([JOINT, TopP(), Sample()], PROBS, "ProbsTopK TopP ProbsSample", "FusedProbsTopKTopPSample", BOTH, BOTH_OF_PROBS),
    (
        [TopK(), Softmax(), TopP(), Sample()],
        LOGITS,
        "LogitsTopK Softmax TopP ProbsSample",
        "LogitsTopK Softmax FusedProbsTopPSample",
        BOTH,
        "top_k_top_p_sampling_from_logits",
    ),
    (
        [Temperature(), TopK(), Softmax(), TopP(), MinP(), Sample()],
        None,
        "Temperature LogitsTopK Softmax TopP MinP ProbsSample",
        "Temperature LogitsTopK Softmax TopP FusedProbsMinPSample",
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
        "",
    ),
]


def names(ops: list[Op] | None) -> str:
    return " ".join(type(op).__name__.removesuffix("Op") for op in ops or [])


@pytest.mark.parametrize(("processors", "kind", "plain", "fused", "params", "function"), PIPES)
def test_a_fused_pipe_does_what_its_parts_and_a_function_do(
    processors: Any, kind: Any, plain: str, fused: str, params: Any, function: str, logits: Any, probs: Any
) -> None:
    pipe = LogitsPipe(processors, input_type=kind)
    parts = LogitsPipe(processors, compile=False, input_type=kind)
    assert (names(pipe.ops), names(pipe.compiled_ops), parts.compiled_ops) == (plain, fused, None)
    rows, is_joint = logits if pipe.initial_type == LOGITS else probs, JOINT in processors
    draws = isinstance(processors[-1], Sample)
    given = [{"generator": one} if draws else {} for one in generators()]
    whole = pipe(rows, **params, **given[0])
    if function:
        order = {"filter_apply_order": "joint"} if is_joint else {}
        assert (getattr(sampling, function)(rows, *params.values(), **given[1], **order) == whole).all()
    if draws:
        assert (pipe(TaggedTensor(rows, pipe.initial_type), **params, **given[2]) == whole).all()
        assert whole.dtype == torch.int32
        assert pipe(rows, **params, indices=torch.tensor([2, 2, 5])).dtype == torch.int64
    if not is_joint:
        torch.testing.assert_close(parts(rows, **params, **given[3]), whole, rtol=1e-5, atol=1e-5)
    free = {name: True for op in pipe.ops for name in getattr(op, "UNREAD", ())}
    for one in (pipe,) if is_joint else (pipe, parts):
        first, again = ({"generator": made} if draws else {} for made in generators()[:2])
        assert (one(rows, **params, **free, **first) == one(rows, **params, **again)).all()
    tensors = {name: torch.full((7,), value) for name, value in params.items()}
    assert pipe(rows, **tensors).shape == whole.shape


def test_parameters_are_those_of_the_call_or_of_the_processor(probs: Any, logits: Any) -> None:
    made = LogitsPipe([TopK(top_k=3), Sample()], input_type=PROBS)
    assert (
        made(probs, generator=generators()[0])
        == sampling.top_k_sampling_from_probs(probs, 3, generator=generators()[0])
    ).all()
    assert (made(probs, top_k=1) == probs.argmax(1)).all()
    warm = LogitsPipe([Temperature(temperature=0.5), Softmax()])
    assert (warm(logits) == sampling.softmax(logits, 0.5)).all()
    assert LogitsPipe([Softmax()])(logits.bfloat16()).dtype == torch.bfloat16
    assert repr(TopK(top_k=3)) == "TopK(joint_topk_topp=False, top_k=3)"
    assert repr(made) == (
        "LogitsPipe([TopK -> Sample], ops=[ProbsTopKOp -> ProbsSampleOp], compiled_ops=[FusedProbsTopKSampleOp])"
    )
    assert repr(made.ops[1]) == "ProbsSampleOp(PROBS -> INDICES)"


def test_what_a_pipe_may_not_be() -> None:
    refused: list[tuple[Any, Any, str]] = [
        ([], None, "Pipeline cannot be empty"),
        ([TopK(), Sample()], None, "Cannot infer input type: TopK can accept both LOGITS and PROBS"),
        ([Temperature()], PROBS, r"Pipeline creation failed: Failed to legalize processor 0 \(Temperature\)"),
        ([Softmax(), Temperature()], None, "Temperature can only be applied to LOGITS, got PROBS"),
        ([Softmax(), Softmax()], None, "Softmax can only be applied to LOGITS, got PROBS"),
        ([TopP()], LOGITS, "TopP can only be applied to PROBS, got LOGITS"),
        ([MinP()], LOGITS, "MinP can only be applied to PROBS, got LOGITS"),
        ([Temperature(), Sample(), TopK()], None, "TopK cannot be applied to INDICES"),
        ([Temperature(), Sample(), Sample()], None, "Sampling cannot be applied to INDICES"),
    ]
    for processors, kind, text in refused:
        with pytest.raises(ValueError, match=text):
            LogitsPipe(processors, input_type=kind)
    with pytest.raises(LegalizationError, match="Cannot legalize empty processor list"):
        legalize_processors([])
    for ops, text in (
        ([], "Cannot compile empty operator list"),
        (legalize_processors([Softmax()]) * 2, "Type mismatch at operator 1 .SoftmaxOp"),
    ):
        with pytest.raises(CompileError, match=text):
            Compiler().compile(ops)


def test_mistakes_of_a_call_name_the_operator(logits: Any, probs: Any) -> None:
    temperature, top_k, top_p, min_p = (
        LogitsPipe([Temperature()]),
        LogitsPipe([TopK(), Sample()], input_type=PROBS),
        LogitsPipe([TopP()]),
        LogitsPipe([MinP(), Sample()]),
    )
    mistakes: list[tuple[str, Any]] = [
        (
            r"Error executing operator 0 \(TemperatureOp\): Required parameter 'temperature'",
            lambda: temperature(logits),
        ),
        ("Temperature must be positive float or a tensor array", lambda: temperature(logits, temperature=0.0)),
        ("Temperature must be positive float or a tensor array", lambda: temperature(logits, temperature=1)),
        ("top_k must be a positive integer or a tensor array", lambda: top_k(probs, top_k=0)),
        ("top_k must be a positive integer or a tensor array", lambda: top_k(probs, top_k=2.5)),
        (r"top_p must be float in \(0, 1\] or a tensor array", lambda: top_p(probs, top_p=0)),
        (r"min_p must be float in \(0, 1\] or a tensor array", lambda: min_p(probs, min_p=1.5)),
        (
            "TopPOp cannot accept input type LOGITS. Expected: PROBS",
            lambda: top_p(TaggedTensor.logits(logits), top_p=0.5),
        ),
    ]
    for text, mistake in mistakes:
        with pytest.raises(ValueError, match=text):
            mistake()


class DoubleOp(ParameterizedOp):
    IN = OUT = LOGITS

    def __call__(self, tensor: TaggedTensor, **kwargs: Any) -> TaggedTensor:
        return TaggedTensor(tensor.data * self._get_param("factor", kwargs), LOGITS)


class Double(LogitsProcessor):
    def legalize(self, input_type: TensorType) -> list[Op]:
        return [DoubleOp(**self.params)]


def test_processors_rules_and_checks_of_the_callers(logits: Any) -> None:
    def once(ops: list[Op]) -> None:
        if sum(isinstance(op, DoubleOp) for op in ops) > 2:
            raise CompileError("too often")

    def build(window: list[Op]) -> Op:
        return DoubleOp(factor=4)

    rules = [FusionRule((DoubleOp, DoubleOp), lambda window: True, build, prio=200)]
    pipe = LogitsPipe(
        [Double(factor=2), Double(factor=2)],
        input_type=LOGITS,
        custom_fusion_rules=rules,
        custom_validity_checks=[once],
    )
    assert names(pipe.compiled_ops) == "Double" and torch.equal(pipe(logits), logits * 4)
    with pytest.raises(ValueError, match="Compilation failed: too often"):
        LogitsPipe([Double(factor=2)] * 3, input_type=LOGITS, custom_validity_checks=[once])
    assert compile_pipeline(pipe.ops) == pipe.ops
    tagged = TaggedTensor.logits(logits)
    assert tagged.size(0) == 7 and tagged.shape == logits.shape and tagged.device == logits.device
    assert torch.equal(torch.neg(tagged), -logits) and "type=LOGITS" in repr(tagged)
    assert repr(TensorType.PROBS) == "TensorType.PROBS" and str(TensorType.PROBS) == "PROBS"

    class Nothing(Op):
        def __call__(self, tensor: TaggedTensor, **kwargs: Any) -> TaggedTensor:
            return tensor

    with pytest.raises(ValueError, match="Nothing must define IN and OUT"):
        Nothing()
