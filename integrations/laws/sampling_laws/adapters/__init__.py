"""Adapters for engines; each imports its engine when it is made."""

import os

# An engine's own sampler is tried, whatever plug-ins are installed beside it: vLLM loads none then.
os.environ["VLLM_PLUGINS"] = ""
