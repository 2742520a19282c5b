"""A shell script, read without running it: what its commands would be, as far as that can be known.

Reading order: `words` (what text consists of), `tokens` (how it is taken apart), `values` (its variables), `expand`
(words with these), `arithmetic`, `statements` (command by command).
"""
