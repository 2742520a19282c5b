"""What runs in the cluster's own Python: each module gathers the facts of one stage and judges nothing.

`python -m raydebug.check.inside REQUEST` (see `__main__`) answers with one line of JSON. `env` imports the standard
library only; the others import what they look at, inside their functions.
"""
