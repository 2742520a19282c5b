"""verl: its commands, keys by version, config, batch rules, log lines, and two patches for images.

Reading order: `trainer` (verl's class), `keys.toml` (its keys by release), `config_files` (overrides and
config without Hydra), `hydra_config` (the config by Hydra, for `raydebug check`), `checks` (what that needs of
main_ppo), `batch_sizes`, `patches`. verl's platform for CPUs is a distribution of its own, packages/raydebug-cpu.
"""
