"""`raydebug check`: find what would stop a training before it starts, in stages from cheap to expensive.

Reading order: `target` (the command and where it would run), `stages` (their order), then one file per stage: `env`,
`data` (with `reward`), `model` (with `model_fit`), `engine`, `train`; `config` has the rules that several stages share.
`probes` gathers facts in the cluster's own Python (`run_probe` starts it); the stages judge them and touch nothing.
`cache` skips stages that passed, `autofix` applies fixes, `output` writes the result.
"""
