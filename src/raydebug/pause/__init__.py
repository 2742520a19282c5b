"""The list of pauses, as commands and people see it."""
