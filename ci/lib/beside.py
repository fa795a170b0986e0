"""Lets this environment import the packages of another one, after its own: ``ENVIRONMENT/bin/python ci/lib/beside.py OTHER``.

What pip installs later is checked against both and lies in this one, so that gigabytes are there once.
"""

import sys
import sysconfig
from pathlib import Path

own = Path(sysconfig.get_path("purelib"))
other = Path(sys.argv[1]).resolve() / own.relative_to(sys.prefix)
if not other.is_dir():
    sys.exit(f"{other} is not there: {sys.argv[1]} must be an environment of {other.parents[0].name}")
(own / "beside.pth").write_text(f"import site; site.addsitedir({str(other)!r})\n")
