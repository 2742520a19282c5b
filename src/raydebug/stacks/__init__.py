"""Stacks of all processes of a job: groups of equal ones, and a verdict on what a hanging job waits for.

Reading order: `collect` asks the processes, with `spy` from outside and `training_words`; `wait_kinds` has the tables
of waits, `graph` who waits for whom; `verdict` judges, with `collectives`, `causes` and `movement`; `groups` and `show`
are for the screen. `hang_watch` with `progress`, and `slow_watch` with `slow_ranks`, watch a run.
"""
