"""Profiles: how big a run is. Settings laid over the user's own training command, explained line by line.

Reading order: `recognise` (is this a training command?), `load` (env/profiles/NAME.yaml), `keys` and its tables (our
words in each trainer's own), `installed` and `compose` (the trainer's version and config, read from its files),
`settings` and `overlay` (the new command, and why), `fit` (numbers that divide each other), `swap` (tiny model, tiny
data), `lay` (all of it over one command), `apply` (inside a job's driver). For `raydebug profile show`: `script` and
the folder `shell` (the trainings of a shell script, read without running it), `explain`.
"""
