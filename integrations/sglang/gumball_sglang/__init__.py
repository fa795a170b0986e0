"""The plug-in of SGLang that adds the sampling backend `gumball`.

SGLang calls :func:`register` in each of its processes, by the entry point `sglang.srt.plugins`. Without `--sampling-backend gumball` nothing changes but that batches keep their
requests' seeds.
"""

from __future__ import annotations

__all__ = ["BACKEND", "TRIED", "register"]

TRIED = ("0.5.23", "0.5.24")
"""The oldest release of SGLang that this was tried with, and the first above those."""

BACKEND = "gumball"
"""What `--sampling-backend` calls it."""


def register() -> None:
    """Adds the backend, and the hooks by which batches keep their requests' seeds. Warns of a release that this was not tried with."""
    from sglang.srt.arg_groups import validation_hook
    from sglang.srt.layers.sampler import register_sampler_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from gumball.plugins.releases import warn_if_untried

    from . import budgets, masks, penalties, radii
    from .draws import Seeds, seed_sample
    from .sampler import Sampler, refuse_marks

    warn_if_untried("gumball-sglang", ("sglang",), *TRIED)
    register_sampler_backend(BACKEND, Sampler)
    info = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
    for name in ("from_schedule_batch", "filter_batch", "merge_batch", "copy_for_forward"):
        HookRegistry.register(f"{info}.{name}", getattr(Seeds, name), HookType.AFTER)
    HookRegistry.register(f"{info}.from_schedule_batch", penalties.begin, HookType.AFTER)
    managers = "sglang.srt.managers"
    entrance = f"{managers}.tokenizer_manager.TokenizerManager"
    for check in (masks.refuse_edits, budgets.refuse_unread, radii.refuse_untold):
        HookRegistry.register(f"{entrance}._validate_one_request", check, HookType.BEFORE)
    HookRegistry.register(f"{entrance}._send_one_request", seed_sample, HookType.BEFORE)
    reading = f"{managers}.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
    for target, hook in (
        (f"{managers}.scheduler.Scheduler._handle_generate_request", masks.any_top_k),
        (f"{reading}.materialize_sampling_mask_output", masks.read),
        ("sglang.srt.sampling.sampling_mask.SamplingMaskChunk.to_lists", masks.unpacked),
        (f"{reading}._maybe_collect_customized_info", radii.collect),
        (f"{entrance}.update_request_meta_info", radii.told),
    ):
        HookRegistry.register(target, hook, HookType.AROUND)
    HookRegistry.register(f"{reading}._maybe_collect_customized_info", penalties.collect, HookType.AFTER)
    counting = f"{managers}.schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens"
    HookRegistry.register(counting, penalties.count, HookType.BEFORE)
    HookRegistry.register(f"{managers}.utils.GenerationBatchResult.copy_to_cpu", radii.copy, HookType.BEFORE)
    arguments = "sglang.srt.arg_groups.validation_hook.check_watermark_server_args"
    HookRegistry.register(arguments, refuse_marks, HookType.BEFORE)
    # SGLang's watermark leaves a marked row one token before any sampler sees it; only the check of arguments refuses others' samplers.
    validation_hook.BUILT_IN_SAMPLING_BACKENDS |= {BACKEND}
