"""raydebug: every stop of a distributed Ray + vLLM + verl run, within reach of one command."""

__version__ = "0.1.0"
