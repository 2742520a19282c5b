"""Stacks of all processes of a job: groups of equal ones, and a verdict on what a hanging job waits for."""
