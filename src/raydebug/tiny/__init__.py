"""A tiny model and a tiny dataset, made on this machine, offline, the same bytes for the same seed.

Reading order: `model` (config, tokenizer, weights), `dataset`, `folder` (all or nothing on disk), `reward` (the reward
function that is written beside the dataset).
"""
