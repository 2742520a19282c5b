"""The report of a run, or of two: documents (run.json) in, one self-contained HTML file out.

Reading order: `document` (what a run left), `run` and `compare` (the two pages), `sections`, `waterfall`, `curves`,
`metrics`, `compare_sections` (their parts), `plot`, `downsample`, `units` (how values are drawn and written), `page`
(escaped HTML, and around it a policy under which nothing is fetched), `write` (the file). All but `write` are pure.
"""

from raydebug.report.compare import comparison_page
from raydebug.report.run import run_page

__all__ = ["comparison_page", "run_page"]
