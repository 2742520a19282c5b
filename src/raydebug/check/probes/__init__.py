"""Code that runs in the cluster's own Python: each module gathers the facts of one stage and judges nothing.

`python -m raydebug.check.probes REQUEST` (`__main__`) prints one line of JSON. `env` imports nothing heavy;
the others import the packages that they examine inside their functions.
"""

from typing import Any, TypeAlias

Facts: TypeAlias = dict[str, Any]  # a request, or the facts that answer it: JSON between two Pythons
MARK = "raydebug-check: "  # starts the line of the answer
BUSY_TIMES = 10  # on a busy machine a limit grows by the time spent waiting for a CPU, up to this factor
