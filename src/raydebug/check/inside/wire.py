"""What both sides of a question agree on."""

MARK = "raydebug-check: "
BUSY_TIMES = 10  # on a busy machine a limit grows by the time spent waiting for a processor, up to so many times
