"""What is kept of a run: `folder` (where), `record` (run.json as values), `timeline` (spans, tasks)."""
