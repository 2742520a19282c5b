"""A shell script, taken apart without running it: `tokens` (words, parts, operators), `expand` (words with values)."""
