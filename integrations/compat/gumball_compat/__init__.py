"""Gumball's functions under the names of other packages, for programs that call those.

Each module replaces one package. Importing this one imports neither torch nor those packages. :mod:`.flashinfer` and :mod:`.tokenspeed`
import torch.
"""
