"""`raydebug check`: find what would stop a training before it starts, in stages from cheap to expensive.

Reading order: `target` (the command, where it would run, and how it is asked there), `stages` (their order, and fixes
applied), then one file per stage: `env` (with `env_machine`), `data`, `model` (with `model_fit`), `engine`, `train`,
`cluster`; `config` has the rules that several stages share. `probes` gathers facts in the cluster's own Python; the
stages judge them and touch nothing. `cache` skips stages that passed, `output` writes the result.
"""
