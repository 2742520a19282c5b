"""Snapshots of crashes, read on any machine: load, values, the terminal console, a session for editors."""
