"""Helpers that plug-ins of engines and gumball-compat share. Programs that draw need none of them, and they may change with any release.

* :mod:`gumball.plugins.releases`: the release of an engine that a plug-in was tried with, and places of the engine that are missing.
* :mod:`gumball.plugins.states`: an engine's requests, admitted to a pool, and seeds made of their ids.
* :mod:`gumball.plugins.kept`: kept sets as an engine's outputs, and requests whose sets do not tell enough. Needs numpy.
* :mod:`gumball.plugins.marks`: the keys of watermarks, and the mark of requests that name none, from variables that importing this package reads.
* :mod:`gumball.plugins.errors`: errors where another package asserts, and arguments that would have no effect.
* :mod:`gumball.plugins.judged`: drafts judged with random numbers that a caller hands in. Needs torch.
* :mod:`gumball.plugins.walks`: which drafts of a tree are accepted, in operators of torch.
"""

from . import marks as marks
