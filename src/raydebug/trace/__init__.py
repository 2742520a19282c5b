"""The timeline of a run: what was recorded of it, as lanes in a file for a viewer, and where a slow step lost time."""
