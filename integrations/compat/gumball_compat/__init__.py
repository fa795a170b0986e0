"""Gumball's functions under the names of other packages, for programs that call those.

Each module replaces one package, and has two names: ``gumball.compat.flashinfer`` is the module ``gumball_compat.flashinfer``. Type
checkers know the second name. Importing this module imports neither torch nor those packages. :mod:`.flashinfer`,
:mod:`.tokenspeed` and :mod:`.vllm` import torch, :mod:`.transformers` also transformers.
"""
