"""Profiles: settings that change the size of a run, applied to the user's own training command and explained.

Reading order: `load` (env/profiles/NAME.yaml), `overlay` (a profile over the arguments of a training), `swap` (tiny
model, tiny data), `apply_profile` (all of it for one command: in a job's driver, and for `run --dry-run`). What a
trainer calls a setting is in `raydebug.trainers`; the trainings of a shell script are found in `raydebug.commands`.
"""
