"""The ladder of checks: what would stop a training later, found before it starts.

Reading order: `finding` and `codes` (what a check says), `subject` (which command, where), `stage` (what a rung is),
`ladder` (the rungs in their order), then one file per stage: `env`, `data` (with `command` and `batch`), `model` (with
`memory`), `engine`, `train`. `inside` gathers the facts in the cluster's own Python; the stages judge them and touch
nothing. `remembered` keeps what passed, `report` writes it down, `mend` applies fixes.
"""
