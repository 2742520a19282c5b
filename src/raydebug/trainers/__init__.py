"""The training frameworks that raydebug knows, each in one folder behind the `Trainer` protocol.

Reading order: `trainer` (the protocol), `registry` (which program of which trainer a command runs, and our setting
words in its keys, by version), `settings` (the settings of one command), `config` (a composed config, read by our
words), `options` (those of argparse). `verl`, `openrlhf` and `slime` implement the protocol; no other room contains a
key of any of them.
"""
