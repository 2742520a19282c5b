"""Say what is wrong: read the logs of a run as events, find the first cause by rules, and give its fix.

Reading order: `inputs` (which logs), `formats` (what a file is), `scan` with `prefilter` (the lines worth a look),
`read` (a line without prefixes), `events` with `signs` (what the lines say), `rules` (what explains an event), `course`
(what the run went on after), `cause` (the judge), `answer`, `fix`, `run_diagnosis` (with hang and snapshots), `again`.
"""
