"""Reads a command or a shell script without running it: finds the trainings in it.

Reading order: `trainings` (the training commands that a command runs, itself or by a script), `statements` (follows a
script, command by command), `expand` (variables and what words become), `tokens` (the words of a script).
"""
