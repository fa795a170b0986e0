"""``python -m gumball_tokenspeed serve MODEL --sampling-backend gumball``: TokenSpeed's command `ts` where the backend's name counts.

``ts serve`` starts its engine as a module that takes the arguments of the server, and TS_SERVE_ENGINE_MODULE names it; with arguments alone this is that module.
"""

from __future__ import annotations

import os
import sys

from . import places

__all__ = ["main"]


def main() -> None:
    """Runs `ts` with the process's arguments if these begin with one of its commands, else the engine's server."""
    places.take_name()
    if len(sys.argv) < 2 or not sys.argv[1].startswith("--"):
        from tokenspeed.cli import main as command

        os.environ.setdefault("TS_SERVE_ENGINE_MODULE", __package__)
        command()
        return
    places.take_servicer()
    from smg_grpc_servicer.tokenspeed.__main__ import main as server

    server()


if __name__ == "__main__":
    main()
