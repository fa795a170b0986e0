"""Lets ``model.generate`` of Hugging Face's transformers draw with Gumball.

::

    from gumball.transformers import generate

    ids = generate(model, SamplingParams(temperature=0.8, top_p=0.9, seed=7), **tokenizer(text, return_tensors="pt"))

`GumballLogitsProcessor` does the work. As the last of the processors, it draws each row's token on the scores' device
and leaves only that token above -inf, so generate can only take that one. To run processors of your own before it,
put it into `logits_processor` yourself.

`replace_head` puts a `Head` in the place of a model's output layer. `generate` then draws from hidden states, and a certified
head reads about half of the layer's weights for a token, a clustered one a part of them, approximately::

    with gumball.Head.replace(model, kind="certified"):
        ids = generate(model, SamplingParams(temperature=0.8, seed=7), **inputs)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from ._gumball import Head, Pool
from .generation import EDITS, switched_off
from .params import SamplingParams, State
from .torch import tokens_of

__all__ = ["GumballLogitsProcessor", "HeadLayer", "ReplacedHead", "generate", "replace_head"]


class GumballLogitsProcessor(LogitsProcessor):
    """Draws the token of each row of a batch and masks all others.

    params: one for all rows, which then use their row index as the draw index; or one per row. attention_mask: that
    of the prompt, [rows, length], so that padding is not part of a row's history. head: the model's output layer, if `replace_head`
    put it there and the tokens are to be drawn from hidden states, not from scores. One processor serves one call of
    generate. Beams are not supported, because they choose between tokens themselves.

    Raises ValueError if the parameters do not fit the vocabulary, or their number differs from the rows'.
    """

    # It hands a processor the last token of each row, without a word about whose it is; transformers drops this one there, with a warning.
    supports_continuous_batching = False

    def __init__(
        self,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        attention_mask: torch.Tensor | None = None,
        head: HeadLayer | None = None,
    ) -> None:
        self.params = SamplingParams() if params is None else params
        self.attention_mask = attention_mask
        self.head = head
        self.pool: Pool | None = None
        self.slots: list[int] = []
        self.length = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Returns scores in which each row has 0 at its token and -inf elsewhere.

        input_ids: [rows, length]. scores: [rows, vocab], float32, bfloat16 or float16.
        """
        if self.pool is None:
            self.pool = self._admitted(input_ids, scores)
        elif input_ids.shape[1] != self.length + 1:
            raise ValueError(
                f"input_ids has length {input_ids.shape[1]}, but must have {self.length + 1}: a token a step"
            )
        self.length = input_ids.shape[1]
        if self.head is None:
            self.pool.enqueue(scores if scores.stride(-1) == 1 else scores.contiguous())
            tokens = tokens_of(self.pool)
        else:
            out = self.pool.step_hidden(self.head.head, self.head.take(len(scores)), self.slots)
            tokens = torch.from_numpy(out.tokens).to(scores.device)
        drawn = tokens[:, None].long()
        # A row without a token stays as it was; generate then raises its own error.
        one = torch.full_like(scores, float("-inf")).scatter_(1, drawn.clamp(min=0), 0.0)
        return torch.where(drawn < 0, scores, one)

    def _admitted(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Pool:
        """Returns a pool that has a sequence for each row, with the row's prompt."""
        rows, vocab = scores.shape
        params = [self.params] * rows if isinstance(self.params, SamplingParams) else list(self.params)
        if len(params) != rows:
            raise ValueError(f"params has length {len(params)}, but must have one per row, {rows}")
        device = scores.device if self.head is None else "cpu"
        pool = Pool(vocab, device=device, slots=rows, rows=rows)
        prompts = self._prompts(input_ids)
        if isinstance(self.params, SamplingParams):
            # All sequences belong to one request: they share its seed and differ in the draw index.
            first = pool.admit(params[0], prompts[0])
            seed, mu = pool.seed(first), pool.state(first).mu
            pool.release(first)
            states = [
                State(prompt, seed=seed, position=len(prompt), draw=row, mu=mu) for row, prompt in enumerate(prompts)
            ]
            self.slots = [pool.resume(one, state) for one, state in zip(params, states)]
        else:
            self.slots = [pool.admit(one, prompt) for one, prompt in zip(params, prompts)]
        pool.assign(self.slots)
        return pool

    def _prompts(self, input_ids: torch.Tensor) -> list[list[int]]:
        if self.attention_mask is None:
            return [list(row) for row in input_ids.tolist()]
        # generate may have several rows for one row of the prompt.
        mask = self.attention_mask.to(input_ids.device)
        mask = mask.repeat_interleave(input_ids.shape[0] // mask.shape[0], 0).bool()
        return [row[keep].tolist() for row, keep in zip(input_ids, mask)]


def generate(model: Any, params: SamplingParams | Sequence[SamplingParams] | None = None, **inputs: Any) -> Any:
    """Calls ``model.generate(**inputs)``, draws every token with Gumball, and returns the result of generate.

    params: as for `GumballLogitsProcessor`. inputs: the arguments of generate, such as input_ids, attention_mask,
    max_new_tokens, streamer, num_return_sequences. Its sampling parameters, such as temperature and top_k, are not
    read; set them in `params`. In the model's generation_config this call turns off sampling, beams and everything
    that changes scores: bad_words_ids, suppress_tokens, sequence_bias, no_repeat_ngram_size, min_new_tokens,
    min_length, forced tokens. Its lengths and stop conditions stay. Edits passed to the call itself, and processors,
    act before the draw.

    If `replace_head` put a head into the model, tokens are drawn from hidden states, the model's logits are not computed, and what would
    edit them is an error.

    Raises ValueError for beams and for continuous batching; for processors and edits of the call beside a replaced head, and for a model that changes logits behind its
    output layer then; and the errors of the processor.
    """
    off = switched_off(model.generation_config, inputs)
    layer = model.get_output_embeddings()
    head = layer if isinstance(layer, HeadLayer) else None
    processor = GumballLogitsProcessor(params, attention_mask=inputs.get("attention_mask"), head=head)
    given = list(inputs.pop("logits_processor", None) or [])
    processors = LogitsProcessorList([*given, processor])
    if head is None:
        return model.generate(**(inputs | off), logits_processor=processors)
    edits = [name for name in EDITS if inputs.get(name) is not None] + ["logits_processor"] * bool(given)
    if edits:
        raise ValueError(f"{edits[0]} edits logits, but with a replaced head none are computed; set it in params")
    behind = _behind_the_head(model)
    if behind is not None:
        raise ValueError(
            f"the model changes logits behind its output layer ({behind}); draw from them, without a replaced head"
        )
    with head.drawing():
        return model.generate(**(inputs | off), logits_processor=processors)


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
        self._pending: list[torch.Tensor] | None = None

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

        hidden: [..., width], on the CPU. Raises RuntimeError where torch would record gradients.
        """
        if torch.is_grad_enabled() and hidden.requires_grad:
            raise RuntimeError("a replaced head has no gradients; call the model under torch.no_grad()")
        shape = (*hidden.shape[:-1], self.head.vocab)
        if self._pending is not None:
            # The processor draws from these; nobody reads the zeros, which are a single number in memory.
            self._pending.append(hidden[..., -1, :].reshape(-1, hidden.shape[-1]))
            return torch.zeros(1).expand(shape)
        states = hidden.reshape(-1, hidden.shape[-1]).contiguous()
        return torch.from_numpy(self.head.logits(states)).reshape(shape)

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """While it lasts, hidden states are kept for `take`, and no logits are computed."""
        if self._pending is not None:
            raise RuntimeError("another call of generate is drawing by this head")
        self._pending = []
        try:
            yield
        finally:
            self._pending = None

    def take(self, rows: int) -> torch.Tensor:
        """Returns the hidden states of the last forward pass, [rows, width].

        Raises RuntimeError if there was no pass since, or several, or one of other rows.
        """
        pending, self._pending = self._pending, []
        if not pending or len(pending) > 1 or len(pending[0]) != rows:
            found = [len(states) for states in pending or []]
            raise RuntimeError(f"a token is drawn from one pass over {rows} rows, but there were passes over {found}")
        return pending[0].contiguous()


class ReplacedHead:
    """A model whose output layer was replaced; `restore`, or the end of a with statement, undoes it.

    model, head, layer: the model, the head, and the layer that has it.
    """

    def __init__(self, model: Any, layer: HeadLayer) -> None:
        self.model, self.head, self.layer = model, layer.head, layer

    def restore(self) -> None:
        """Puts the model's own layer back. Does nothing if that was done.

        Raises RuntimeError if another layer stands there by now.
        """
        current = self.model.get_output_embeddings()
        if current is self.layer:
            self.model.set_output_embeddings(self.layer.original)
        elif current is not self.layer.original:
            raise RuntimeError("the model's output layer was replaced again; restore that one first")

    def __enter__(self) -> ReplacedHead:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()


def replace_head(model: Any, *, head: Head | None = None, **arguments: Any) -> ReplacedHead:
    """Puts a `Head` over the weights of a model's output layer in its place, and returns what undoes that.

    model: a model of transformers on the CPU whose output layer (`get_output_embeddings()`, for most models `lm_head`) is a torch.nn.Linear;
    its weight may be tied to the embedding. The weight is borrowed and stays the model's; of kind="clustered" the head has a copy, in the order of its clusters.
    arguments: those of Head, but for weights, bias and in_place. head: a head over these weights that was made before, instead, of which in_place was False.

    Replaced is this one module of the model. Its logits are then float32, in another order of adding than torch's, so their last bits, and
    in rare cases tokens, are others than without; they are the same on every machine and in every batch. `generate` of this module draws from hidden states, and
    of a clustered head from the logits that it probes. Everything else about the model stays. Restore the layer before the model is saved, moved, trained or given other weights.

    Raises TypeError if there is no such layer, ValueError for a head of another shape or made with in_place=True and for weights that are not on the CPU, and the errors of Head.
    """
    layer = model.get_output_embeddings()
    if isinstance(layer, HeadLayer):
        raise ValueError("the model's output layer is a head already; restore the first")
    if not isinstance(layer, torch.nn.Linear):
        raise TypeError(f"the model's output layer must be a torch.nn.Linear, not {type(layer).__name__}")
    if arguments.get("in_place"):
        raise ValueError("in_place is True, but must be False: the rows of the layer stay where the model reads them")
    if head is None:
        bias = None if layer.bias is None else layer.bias.detach().float()
        head = Head(layer.weight, bias=bias, **arguments)
    elif arguments:
        raise ValueError(f"{next(iter(arguments))} is for a head that is made here, but head is given")
    elif (head.vocab, head.width) != tuple(layer.weight.shape):
        raise ValueError(f"head is [{head.vocab}, {head.width}], but must be {list(layer.weight.shape)}, as the layer")
    elif head.kind == "clustered" and head.is_borrowed:
        raise ValueError(
            "head has permuted the rows of its weights in place (in_place=True), but the model reads the layer's by their ids; "
            "make the head with in_place=False, which copies them"
        )
    made = HeadLayer(head, layer)
    made.train(layer.training)
    model.set_output_embeddings(made)
    return ReplacedHead(model, made)


# What models of transformers do to logits behind their output layer, and the value that means nothing.
_BEHIND = {"final_logit_softcapping": (None,), "logit_scale": (None, 1.0), "logits_scaling": (None, 1.0)}


def _behind_the_head(model: Any) -> str | None:
    config = model.config.get_text_config()
    for name, neutral in _BEHIND.items():
        value = getattr(config, name, None)
        if value not in neutral:
            return f"{name} is {value}"
    return None
