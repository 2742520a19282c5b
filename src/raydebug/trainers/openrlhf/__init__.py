"""OpenRLHF: `openrlhf.cli.train_ppo_ray`, its options by version, batch rules and log lines.

Reading order: `trainer` (the protocol's implementation), `options` (argparse arguments, the defaults in its source,
and the table of keys).
"""
