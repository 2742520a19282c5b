"""The training frameworks that raydebug knows, each in one folder behind the `Trainer` protocol.

Reading order: `trainer` (the protocol), `recognise` (which program of which trainer a command runs), `keys` (our
setting words in each trainer's keys, by version), `settings` (the settings of one command), `config` (a composed
config, read by our words). `verl` and `openrlhf` implement the protocol; no other room contains a key of either.
"""
