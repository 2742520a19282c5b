"""Stacks of all processes of a job: groups of equal ones, and a verdict on what a hanging job waits for.

Reading order: `collect` (from the processes) with `spy` (from outside), `groups` (equal ones), `waits` (what a process
waits for), `collectives` and `verdict` (what the job waits for), `show` (as text), `hang_watch` and `progress` (`run
--hang-after`).
"""
