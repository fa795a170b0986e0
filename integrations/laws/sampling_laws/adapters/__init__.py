"""Adapters for engines; each imports its engine when it is made."""

import os

# An engine's own sampler is tried: with this, vLLM loads no plug-ins that are installed beside it.
os.environ["VLLM_PLUGINS"] = ""
