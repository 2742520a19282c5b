"""`nox -s demo`: the main job, seen from outside as a user sees it: every step is a command that one can type."""
