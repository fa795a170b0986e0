"""A head of Gumball as the output layer of a model of transformers."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from gumball import Head
from gumball.errors import CallError, InvalidTypeError, InvalidValueError, RefusedError

__all__ = ["HeadLayer", "ReplacedHead", "held_head", "last_states", "replace_head"]


class _Pass(threading.local):
    """The pass of a model that `generate` runs in this thread: the layer that it draws by, and where the hidden states go; None between passes.

    It is neither the layer's nor the model's, so that what else runs the model meanwhile gets its logits.
    """

    kept: tuple[HeadLayer, list[torch.Tensor]] | None = None


_PASS = _Pass()

# How many calls of `generate` run with each of the models' own output layers in its place, or with a head in the place of that.
_CALLS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


class HeadLayer(torch.nn.Module):
    """A `Head` as the output layer of a model on the CPU, without gradients.

    head: the head. original: the layer that it stands in for, whose weight and bias stay readable as `weight` and `bias`.
    It has no parameters of its own: what saves, moves or trains the model does not find the layer's, so undo the replacement first.
    """

    def __init__(self, head: Head, original: Any) -> None:
        super().__init__()
        self.head = head
        # In a list, so that torch does not take it for a part of the module.
        self._original = [original]

    @property
    def original(self) -> Any:
        """The layer that this stands in for."""
        return self._original[0]

    @property
    def weight(self) -> Any:
        """The original layer's weight."""
        return self.original.weight

    @property
    def bias(self) -> Any:
        """The original layer's bias, or None."""
        return getattr(self.original, "bias", None)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns all logits, [..., vocab] float32, by the head's exact product, whichever kind it is.

        hidden: [..., width], on the CPU. Raises CallError where torch would record gradients.
        """
        if torch.is_grad_enabled() and hidden.requires_grad:
            raise CallError("a replaced head has no gradients; call the model under torch.no_grad()")
        shape = (*hidden.shape[:-1], self.head.vocab)
        if _PASS.kept is not None and _PASS.kept[0] is self:
            # `generate` draws from these states, so the logits may be zeros, all of them one number in memory.
            _PASS.kept[1].append(hidden[..., -1, :].reshape(-1, hidden.shape[-1]))
            return torch.zeros(1).expand(shape)
        states = hidden.reshape(-1, hidden.shape[-1]).contiguous()
        return torch.from_numpy(self.head.logits(states)).reshape(shape)

    @contextlib.contextmanager
    def keeping(self) -> Iterator[list[torch.Tensor]]:
        """While it lasts, a pass that this thread runs appends each row's last hidden state here, [rows, width], and computes no logits."""
        states: list[torch.Tensor] = []
        before, _PASS.kept = _PASS.kept, (self, states)
        try:
            yield states
        finally:
            _PASS.kept = before


def last_states(states: list[torch.Tensor], rows: int, *, chunks: bool) -> torch.Tensor:
    """Returns the hidden states of a pass, [rows, width]. states: as `keeping` left them. chunks: whether a prompt was read in several passes.

    Raises CallError if there was no pass, or several that are no chunks, or one of other rows.
    """
    if not states or (len(states) > 1 and not chunks) or len(states[-1]) != rows:
        found = [len(one) for one in states]
        raise CallError(
            f"a token is drawn from one pass over {rows} rows by the replaced head, but there were passes over {found}; "
            "leave the head in its place during the call"
        )
    return states[-1].contiguous()


class ReplacedHead:
    """A model whose output layer was replaced; `restore`, or the end of a with statement, undoes it.

    model, head, layer: the model, the head, and the layer that has it.
    """

    def __init__(self, model: Any, layer: HeadLayer) -> None:
        self.model, self.head, self.layer = model, layer.head, layer

    def restore(self) -> None:
        """Puts the model's own layer back. Does nothing if that was done.

        Raises CallError if another layer stands there by now, and while a `generate` of this model runs; the head stays then.
        """
        current = self.model.get_output_embeddings()
        if current is self.layer:
            _put(self.model, self.layer.original)
        elif current is not self.layer.original:
            raise CallError("the model's output layer was replaced again; restore that one first")

    def __enter__(self) -> ReplacedHead:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()


def replace_head(model: Any, *, head: Head | None = None, kind: str = "auto", **arguments: Any) -> ReplacedHead:
    """Puts a `Head` over the weights of a model's output layer in its place, and returns what undoes that.

    model: a model of transformers on the CPU whose output layer (`get_output_embeddings()`, for most models `lm_head`) is a torch.nn.Linear;
    its weight may be tied to the embedding. The weight is borrowed and stays the model's; a clustered head has a copy, in the order of its clusters.
    kind: "auto" or "clustered". arguments: those of Head.auto or Head.clustered, but for weights, bias and in_place. head: a head over these weights that was made before, instead, of which in_place was False.

    Replaced is this one module of the model. Its logits are then float32, in another order of adding than torch's, so their last bits, and
    in rare cases tokens, are others than without; they are the same on every machine and in every batch. `generate` of `gumball_transformers` draws from hidden states, and
    of a clustered head from the logits that it probes. Everything else about the model stays. Restore the layer before the model is saved, moved, trained or given other weights.

    Raises TypeError if there is no such layer, ValueError for a head of another shape or made with in_place=True and for weights that are not on the CPU, CallError
    while a `generate` of this model runs, and the errors of Head.
    """
    layer = model.get_output_embeddings()
    if isinstance(layer, HeadLayer):
        raise InvalidValueError("the model's output layer is a head already; restore the first")
    if not isinstance(layer, torch.nn.Linear):
        raise InvalidTypeError(f"the model's output layer must be a torch.nn.Linear, not {type(layer).__name__}")
    if arguments.get("in_place"):
        raise InvalidValueError(
            "in_place is True, but must be False: the rows of the layer stay where the model reads them"
        )
    if kind not in ("auto", "clustered"):
        raise InvalidValueError(f'kind is {kind!r}, but must be "auto" or "clustered"')
    if head is None:
        bias = None if layer.bias is None else layer.bias.detach().float()
        head = getattr(Head, kind)(layer.weight, bias=bias, **arguments)
    elif arguments or kind != "auto":
        raise InvalidValueError(f"{next(iter(arguments), 'kind')} is for a head that is made here, but head is given")
    elif (head.vocab, head.width) != tuple(layer.weight.shape):
        raise InvalidValueError(
            f"head is [{head.vocab}, {head.width}], but must be {list(layer.weight.shape)}, as the layer"
        )
    elif head.kind == "clustered" and head.is_borrowed:
        raise InvalidValueError(
            "head has permuted the rows of its weights in place (in_place=True), but the model reads the layer's by their ids; "
            "make the head with in_place=False, which copies them"
        )
    made = HeadLayer(head, layer)
    made.train(layer.training)
    _put(model, made)
    return ReplacedHead(model, made)


def _put(model: Any, layer: Any) -> None:
    """Makes a layer the model's output layer, unless a call of `generate` runs, whose tokens would come of two layers then. Raises CallError."""
    with _LOCK:
        count = _CALLS.get(_own(model.get_output_embeddings()), 0)
        if count:
            calls = "a call of generate runs" if count == 1 else f"{count} calls of generate run"
            raise CallError(f"{calls} with this model; replace its output layer, or restore it, when they have ended")
        model.set_output_embeddings(layer)


def _own(layer: Any) -> Any:
    return layer.original if isinstance(layer, HeadLayer) else layer


@contextlib.contextmanager
def held_head(model: Any) -> Iterator[HeadLayer | None]:
    """Gives the head that `replace_head` has put into a model, and while it lasts lets nobody replace the output layer or restore it.

    Raises RefusedError for a model that changes logits after a head.
    """
    with _LOCK:
        layer = model.get_output_embeddings()
        own = _own(layer)
        if own is not None:
            _CALLS[own] = _CALLS.get(own, 0) + 1
    try:
        yield _checked(model, layer) if isinstance(layer, HeadLayer) else None
    finally:
        with _LOCK:
            if own is not None:
                _CALLS[own] -= 1


# The fields of a configuration by which models change logits after their output layer, and the values by which they do not.
_BEHIND = {"final_logit_softcapping": (None,), "logit_scale": (None, 1.0), "logits_scaling": (None, 1.0)}


def _checked(model: Any, layer: HeadLayer) -> HeadLayer:
    config = model.config.get_text_config()
    for name, neutral in _BEHIND.items():
        value = getattr(config, name, None)
        if value not in neutral:
            raise RefusedError(
                f"the model changes logits behind its output layer ({name} is {value}); draw from them, without a replaced head"
            )
    return layer
