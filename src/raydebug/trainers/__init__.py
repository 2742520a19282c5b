"""The training frameworks that raydebug knows, each in one folder: a subclass of `Trainer` and a table of keys.

Reading order: `trainer` (the class with its defaults), `keys` (our setting words in a trainer's keys, by version),
`registry` (which program of which trainer a command runs), `arguments` and `settings` (those of one command),
`config` (a composed config, read by our words), `argparse_trainer` and `options` (trainers with argparse). No room but
`verl`, `openrlhf` and `slime` contains a key of any of them.
"""
