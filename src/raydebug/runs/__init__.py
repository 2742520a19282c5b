"""What is left of a run: its folder, written while it goes on.

Reading order: `folder`, `phases`, `memory`, `recorder`; then `page`, which shows it.
"""
