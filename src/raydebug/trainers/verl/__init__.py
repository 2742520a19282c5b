"""verl: its commands, keys by version, config, batch rules, log lines, and its plug-in for CPUs.

Reading order: `trainer` (the protocol's implementation), `keys_ppo` and `keys_others` (tables), `overrides` (Hydra's
arguments), `config_files` (the config without Hydra), `hydra_config` (the config by Hydra, for `raydebug check`),
`checks` and `config_rules` (rules of `raydebug check`), `batch_sizes`, `cpu`.
"""
