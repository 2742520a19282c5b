"""The run report: documents of runs (run.json) in, one self-contained HTML file out. Pure.

Reading order: `document` and `reading` (what a run left), `run` and `compare` (the two pages), `waterfall`, `curves`,
`metrics`, `pauses`, `facts`, `both`, `differences` (their parts), `plot`, `thinning`, `words`, `colours` (how a part is
drawn), `markup` and `shell` (HTML that is escaped, and around it a policy under which nothing is fetched).
"""

from raydebug.runs.page.compare import comparison_page
from raydebug.runs.page.run import run_page

__all__ = ["comparison_page", "run_page"]
