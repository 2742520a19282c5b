"""`python -m raydebug.gateway`: the gateway process, started by `raydebug up`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from raydebug.gateway import logs
from raydebug.gateway.listener import raise_file_limit
from raydebug.gateway.pause_lifecycle import LIMIT_S
from raydebug.gateway.server import Ports, serve
from raydebug.protocol import variables

PAUSE_LIMIT_S = "PAUSE_LIMIT_S"  # as .env.example has it


def main() -> int:
    """Read the command line and the token file, and serve."""
    parser = argparse.ArgumentParser(prog="python -m raydebug.gateway", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address for clients (default: %(default)s)")
    parser.add_argument("--client-port", type=int, default=5678, help="port for clients (default: %(default)s)")
    parser.add_argument("--dial-host", default="127.0.0.1", help="address for processes (default: %(default)s)")
    parser.add_argument("--dial-port", type=int, default=5679, help="port for processes (default: %(default)s)")
    limit_s = float(os.environ.get(PAUSE_LIMIT_S) or LIMIT_S)
    what = "resume a pause after so many seconds without a debugger; 0: never (default: %(default)s)"
    parser.add_argument("--pause-limit-s", type=float, default=limit_s, help=what)
    what = "host names that HTTP requests may use besides loopback, separated by commas"
    parser.add_argument("--allowed-hosts", default=os.environ.get(variables.ALLOWED_HOSTS, ""), help=what)
    parser.add_argument("--log-file", type=Path, help="rotated log file (default: stderr)")
    parser.add_argument("--audit-file", type=Path, help="second file for audit lines, kept for 30 days")
    options = parser.parse_args()
    logs.set_up(options.log_file, options.audit_file)
    raise_file_limit()
    token = Path(os.environ[variables.TOKEN_PATH]).read_text(encoding="ascii").strip()
    try:
        ports = Ports(options.host, options.client_port, options.dial_host, options.dial_port)
        hosts = tuple(name.strip() for name in options.allowed_hosts.split(","))
        asyncio.run(serve(token, ports, options.pause_limit_s, hosts))
    except OSError as error:
        logging.getLogger("raydebug.gateway").error("%s", error)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
