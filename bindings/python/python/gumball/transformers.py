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
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation.configuration_utils import GenerationMode

from ._gumball import Head, Pool
from .compat.transformers.calls import no_token, prompts_of, stop_strings
from .generation import SAMPLING, said_by, switched_off
from .params import SamplingParams, State
from .torch import tokens_of

__all__ = ["GumballLogitsProcessor", "HeadLayer", "ReplacedHead", "generate", "replace_head"]


class GumballLogitsProcessor(LogitsProcessor):
    """Draws the token of each row of a batch and masks all others.

    params: one for all rows, which then use their row index as the draw index; or one per row. attention_mask: that
    of the prompt's ids, [rows, length], so that padding is not part of a row's history; without it nothing is padding. Of a model with an
    encoder it is the decoder's. A prompt of embeddings has no ids: it counts as empty, whatever the mask. head: the model's output layer, if `replace_head`
    put it there and the tokens are to be drawn from hidden states, not from scores. One processor serves one call of
    generate. Beams and drafts are not supported, because they choose between tokens themselves.

    Raises ValueError if the parameters do not fit the vocabulary, their number differs from the rows', or the mask's shape from the ids'; and
    for ids that do not go on from the step before. Raises RuntimeError for a row without a token above -inf.
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
        self._before: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Returns scores in which each row has 0 at its token and -inf elsewhere.

        input_ids: [rows, length]. scores: [rows, vocab], float32, bfloat16 or float16.
        """
        if self.pool is None:
            self.pool = self._admitted(input_ids, scores)
        elif not self._goes_on(input_ids):
            raise ValueError(
                "input_ids are not those of the step before and the tokens drawn then; one processor serves one call of generate, "
                "a token a step: make another for another call"
            )
        if self.head is None:
            self.pool.enqueue(scores if scores.stride(-1) == 1 else scores.contiguous())
            tokens = tokens_of(self.pool)
        else:
            out = self.pool.step_hidden(self.head.head, self.head.take(len(scores)), self.slots)
            tokens = torch.from_numpy(out.tokens).to(scores.device)
        drawn = tokens.long()
        if int(drawn.min()) < 0:
            raise no_token(int(drawn.argmin()), input_ids.shape[1])
        self._before = input_ids, drawn.to(input_ids.device, copy=True)
        return torch.full_like(scores, float("-inf")).scatter_(1, drawn[:, None], 0.0)

    def _goes_on(self, ids: torch.Tensor) -> bool:
        """Whether these ids are the previous step's, each row followed by its drawn token, or by padding if it has ended."""
        if self._before is None or ids.shape[1] == 0:
            return False
        before, drawn = self._before
        if not torch.equal(ids[:, :-1], before):
            return False
        others = ids[:, -1][ids[:, -1] != drawn]
        return len(others) < len(drawn) and bool((others == others[:1]).all())

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
        mask, (rows, length) = self.attention_mask, input_ids.shape
        if mask is None or length == 0:
            return prompts_of(input_ids, None)
        if mask.ndim != 2 or mask.shape[1] != length or rows % max(len(mask), 1) != 0 or len(mask) > rows:
            raise ValueError(
                f"attention_mask is {list(mask.shape)}, but must be [{rows}, {length}], as the prompt's ids are; "
                "of a model with an encoder it is the decoder's mask, or None"
            )
        # generate may have several rows for one row of the prompt.
        return prompts_of(input_ids, mask.repeat_interleave(rows // len(mask), 0))


def generate(model: Any, params: SamplingParams | Sequence[SamplingParams] | None = None, **inputs: Any) -> Any:
    """Calls ``model.generate(**inputs)``, draws every token with Gumball, and returns the result of generate.

    params: as for `GumballLogitsProcessor`. inputs: the arguments of generate, such as input_ids, attention_mask,
    max_new_tokens, streamer, num_return_sequences, generation_config. Its sampling parameters, such as temperature and top_k, are not
    read, which a warning says once; set them in `params`. In the model's own generation_config this call turns off sampling, beams, drafts and everything
    that changes scores: bad_words_ids, suppress_tokens, sequence_bias, no_repeat_ngram_size, min_new_tokens,
    min_length, forced tokens. Its lengths and stop conditions stay. Edits passed to the call itself, loose or in its generation_config, and processors
    act before the draw. What is padding transformers says, as for its own draw: attention_mask, or else pad_token_id.

    If `replace_head` put a head into the model, tokens are drawn from hidden states, the model's logits are not computed, and what would
    edit them is an error. The scores of `output_scores` are 0 at the token drawn and -inf elsewhere; `output_logits` has the model's.

    Raises ValueError for beams, drafts and continuous batching; for processors and edits of the call beside a replaced head, and for a model that changes logits behind its
    output layer then; and the errors of the processor.
    """
    said = said_by(inputs)
    arguments = inputs | switched_off(model.generation_config, said)
    _say_what_is_not_read(said)
    layer = model.get_output_embeddings()
    head = layer if isinstance(layer, HeadLayer) else None
    if head is not None:
        behind = _behind_the_head(model)
        if behind is not None:
            raise ValueError(
                f"the model changes logits behind its output layer ({behind}); draw from them, without a replaced head"
            )
    criteria = stop_strings(said, model.generation_config, said.get("tokenizer"))
    if criteria:
        arguments |= {"stop_strings": None, "stopping_criteria": [*(said.get("stopping_criteria") or []), *criteria]}

    def drawing(
        model: Any,
        input_ids: Any,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **prepared: Any,
    ) -> Any:
        mode = generation_config.get_generation_mode(None)
        if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
            raise ValueError(
                f"the generation mode is {mode.value}, but must be one that draws a token of each row a step"
            )
        if head is not None and logits_processor:
            raise ValueError(
                f"{type(logits_processor[0]).__name__} edits logits, but with a replaced head none are computed; set it in params"
            )
        encodes = model.config.is_encoder_decoder
        mask = prepared.get("decoder_attention_mask" if encodes else "attention_mask")
        if mask is not None:
            # It begins before the ids where a cache has what came before.
            mask = mask[:, -input_ids.shape[1] :]
        ours = GumballLogitsProcessor(params, attention_mask=mask, head=head)
        # One token of each row is left, which needs no draw of torch's.
        generation_config.do_sample = False
        # How processes step together, and the streamer: transformers hands these to none but its own loops.
        modes = model._extract_generation_mode_kwargs(None, {}, said.get("synced_gpus"), None, said.get("streamer"))
        processors = LogitsProcessorList([*logits_processor, ours])
        return type(model)._sample(
            model, input_ids, processors, stopping_criteria, generation_config, **modes, **prepared
        )

    with contextlib.nullcontext() if head is None else head.drawing():
        return model.generate(**arguments, custom_generate=drawing)


_said: set[str] = set()


def _say_what_is_not_read(said: Mapping[str, Any]) -> None:
    """Warns, once for each name, of sampling arguments of a call that are not read."""
    names = [name for name in (*SAMPLING, "do_sample") if name in said and name not in _said]
    _said.update(names)
    if names:
        logging.getLogger("gumball").warning(
            "%s of a call of generate: not read by gumball.transformers.generate, whose params say how tokens are drawn",
            ", ".join(names),
        )


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
