"""What the processes of a job wrote: which files there are and whose, what they say, and what went wrong first.

Reading order: `sources` (the files, with role and rank), `reading` (their lines), `errors` (the first real error).
"""
