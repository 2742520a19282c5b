"""`python -m raydebug.gateway`: the gateway as a process of its own; `raydebug up` starts it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from raydebug.gateway.expiry import LIMIT_S
from raydebug.gateway.server import Ports, serve
from raydebug.worker import names

PAUSE_LIMIT_S = "PAUSE_LIMIT_S"  # as .env.example has it


def main() -> int:
    """Read the command line and the token file, and serve."""
    parser = argparse.ArgumentParser(prog="python -m raydebug.gateway", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="where clients come (default: %(default)s)")
    parser.add_argument("--client-port", type=int, default=5678, help="port for clients (default: %(default)s)")
    parser.add_argument("--dial-host", default="127.0.0.1", help="where processes dial in (default: %(default)s)")
    parser.add_argument("--dial-port", type=int, default=5679, help="port for processes (default: %(default)s)")
    limit_s = float(os.environ.get(PAUSE_LIMIT_S) or LIMIT_S)
    what = "a pause without a debugger goes on after so many seconds; 0: never (default: %(default)s)"
    parser.add_argument("--pause-limit-s", type=float, default=limit_s, help=what)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    token = Path(os.environ[names.TOKEN_PATH]).read_text(encoding="ascii").strip()
    try:
        ports = Ports(options.host, options.client_port, options.dial_host, options.dial_port)
        asyncio.run(serve(token, ports, options.pause_limit_s))
    except OSError as error:
        logging.getLogger("raydebug.gateway").error("%s", error)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
