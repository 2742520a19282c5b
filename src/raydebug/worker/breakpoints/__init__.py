"""Breakpoints in the user's code: those set from outside are compiled in, without tracing."""
