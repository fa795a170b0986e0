"""The places in TokenSpeed where Gumball's backend and its checks of requests go; the rest of TokenSpeed stays as it is.

| place | what is there then |
| --- | --- |
| the registry of `tokenspeed.runtime.sampling.registry` | the backend `gumball`, beside `greedy`, `flashinfer`, `triton` and their full ones |
| `InputProcessor.tokenize_one_request` | a check of each request before it enters the engine |
| `MsgpackRecvSocket._validation_error` | the same for requests that come by ZMQ, past the first |
| `OutputProcesser.post_process_forward_op`, `.stream_output` and `OutputProcessor.handle_batch_output` | a request's seed and, if it asks for them, its kept sets and radii, in its answer |
| `EventLoop._gather_sampling_params` | what a request has so far and what ends it, beside its parameters; nothing for a row whose token nobody keeps |
| `ServerArgs.add_cli_args` | `gumball` among the names that `--sampling-backend` takes; in processes started by `python -m gumball_tokenspeed` |
| `TokenSpeedSchedulerServicer._build_generate_req` | `sampling_seed` and `custom_params`, which the server's messages carry and it drops; there, too |
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from gumball.errors import RefusedError
from gumball.plugins.releases import taking_places

from . import BACKEND, TRIED
from .params import RETURN_KEPT, RETURN_RADII

__all__ = ["take", "take_name", "take_servicer"]


def _looking() -> AbstractContextManager[None]:
    otherwise = "uninstall gumball-tokenspeed, or set TOKENSPEED_DISABLE_PLUGINS=gumball"
    return taking_places("gumball-tokenspeed", "TokenSpeed", TRIED, otherwise)


def take() -> None:
    """Registers the backend and puts the checks into their places, once. Raises RuntimeError if one is missing; none is taken then."""
    with _looking():
        from tokenspeed.runtime.engine.event_loop import EventLoop
        from tokenspeed.runtime.engine.generation_output_processor import OutputProcesser, RequestState
        from tokenspeed.runtime.engine.input_processor import InputProcessor
        from tokenspeed.runtime.engine.output_processor import OutputProcessor
        from tokenspeed.runtime.engine.zmq_msgpack import MsgpackRecvSocket
        from tokenspeed.runtime.plugins.registry import record_external
        from tokenspeed.runtime.sampling import registry
        from tokenspeed.runtime.utils.env import global_server_args_dict as settings

        backends, register_backend = registry._BACKEND_REGISTRY, registry.register_backend
        tokenize, check = InputProcessor.tokenize_one_request, MsgpackRecvSocket._validation_error
        gather, _ = EventLoop._gather_sampling_params, (RequestState.set_cached_id, settings["sampling_backend"])
        read, send, receive = (
            OutputProcesser.post_process_forward_op,
            OutputProcesser.stream_output,
            OutputProcessor.handle_batch_output,
        )
    from . import kept
    from .backend import GumballSamplingBackend
    from .requests import refuse, told

    if BACKEND in backends:
        return

    async def tokenize_one_request(self: Any, obj: Any) -> Any:
        made = await tokenize(self, obj)
        if self.engine.server_args.sampling_backend == BACKEND:
            drafts = self.engine.server_args.speculative_algorithm is not None
            refuse(made, self.engine.model_config.vocab_size, drafts)
        return made

    def _validation_error(self: Any, obj: Any) -> str | None:
        found: str | None = check(self, obj)
        if found is None and settings["sampling_backend"] == BACKEND:
            try:
                # The socket is in the backend's process, and does not know of drafts.
                refuse(obj, self._vocab_size, GumballSamplingBackend.drafts)
                _refuse_lost(obj.sampling_params.custom_params)
            except ValueError as error:
                return str(error)
        return found

    def _gather_sampling_params(self: Any, forward_op: Any) -> list[Any]:
        if settings["sampling_backend"] == BACKEND:
            return told(self.output_processor.rid_to_state, forward_op)
        theirs: list[Any] = gather(self, forward_op)
        return theirs

    def post_process_forward_op(self: Any, forward_op: Any, results: Any, *rest: Any, **named: Any) -> Any:
        kept.note_step(self, forward_op, results)
        return read(self, forward_op, results, *rest, **named)

    def stream_output(self: Any, stream_out_rids: list[str], output_states: list[Any]) -> None:
        if settings["sampling_backend"] == BACKEND:
            kept.telling(send, self, stream_out_rids, output_states)
        else:
            send(self, stream_out_rids, output_states)

    def handle_batch_output(self: Any, recv_obj: Any) -> Any:
        kept.unpack(recv_obj)
        return receive(self, recv_obj)

    register_backend(BACKEND, GumballSamplingBackend)
    record_external("sampling backend", BACKEND, lambda: backends.pop(BACKEND, None))
    InputProcessor.tokenize_one_request = tokenize_one_request
    MsgpackRecvSocket._validation_error = _validation_error
    EventLoop._gather_sampling_params = _gather_sampling_params
    OutputProcesser.post_process_forward_op = post_process_forward_op
    OutputProcesser.stream_output, OutputProcessor.handle_batch_output = stream_output, handle_batch_output


def _refuse_lost(given: Any) -> None:
    """Raises RefusedError if the gateway's client asks for what its messages have no place for."""
    for name in {RETURN_KEPT, RETURN_RADII} & set(given or ()):
        raise RefusedError(f"custom_params has {name}, for which the gateway's answers have no place; ask by Engine")


def take_name() -> None:
    """Lets this process's command line take the backend's name. Raises RuntimeError if it has no such option."""
    with _looking():
        from tokenspeed.runtime.utils.server_args import ServerArgs

        add = ServerArgs.add_cli_args

    def add_cli_args(parser: Any) -> None:
        add(parser)
        with _looking():
            option = parser._option_string_actions["--sampling-backend"]
        if option.choices is not None and BACKEND not in option.choices:
            option.choices = [*option.choices, BACKEND]

    ServerArgs.add_cli_args = staticmethod(add_cli_args)


def take_servicer() -> None:
    """Lets this process's server hand on each request's seed and own parameters. Raises RuntimeError if it makes requests in another way."""
    with _looking():
        from google.protobuf.json_format import MessageToDict
        from smg_grpc_proto.generated import tokenspeed_scheduler_pb2
        from smg_grpc_servicer.tokenspeed.servicer import TokenSpeedSchedulerServicer

        build = TokenSpeedSchedulerServicer._build_generate_req
        fields = tokenspeed_scheduler_pb2.SamplingParams.DESCRIPTOR.fields_by_name
        _ = fields["sampling_seed"], fields["custom_params"]

    def _build_generate_req(self: Any, request: Any) -> Any:
        made, asked = build(self, request), request.sampling_params
        if self.server_args.sampling_backend == BACKEND:
            if asked.HasField("sampling_seed"):
                made.sampling_params.setdefault("seed", asked.sampling_seed)
            if asked.HasField("custom_params"):
                given = MessageToDict(asked.custom_params)
                _refuse_lost(given)
                made.sampling_params.setdefault("custom_params", given)
        return made

    TokenSpeedSchedulerServicer._build_generate_req = _build_generate_req
