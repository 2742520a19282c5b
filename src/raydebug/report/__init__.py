"""The report of a run: its document (run.json) in, one self-contained HTML file out; two runs as a table.

Reading order: `run` (the page), `waterfall`, `curves`, `metrics`
(their parts), `plot`, `units` (how values are drawn and written), `page` (escaped HTML, and around it a policy under
which nothing is fetched). All of them are pure; `write` writes the file, which only its owner can read. `crash` is the
page of a snapshot, `compare` the table of two runs.
"""
