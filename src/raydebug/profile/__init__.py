"""Profiles: how big a run is. Settings laid over the user's own training command, explained line by line.

Reading order: `recognise` (is this a training command?), `load` (env/profiles/NAME.yaml), `keys` (our words in each
trainer's own), `overlay` (the new command, and why).
"""
