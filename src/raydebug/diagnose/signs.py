"""Signs of the course of a run in its lines: progress, its end, that of a process. They are data, as the rules are.

Each has a literal text of three bytes or more in all of its matches, so that a log is searched for it quickly. A text
that most lines have, such as `run`, would slow the search down: `[Rr]un` has none.
Sources, beside those of the trainers: vllm 0.28 v1/metrics/loggers.py, transformers 5.9 trainer_callback.py, lightning
2.5, OpenRLHF 0.9, Megatron-LM 0.12 training.py, deepspeed 0.17 launcher, torchtitan 0.2, ray 2.60 jobs
and tune, Slurm 24.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from raydebug.diagnose.prefilter import Prefilter, search
from raydebug.trainers.registry import TRAINERS

# The run goes on, whichever of its processes says so: a step, an epoch, a served request.
STEP = (
    *(trainer.log.step.pattern for trainer in TRAINERS),
    r"Training Progress:.*\d+/\d+",
    r"Total training steps: \d+",
    r"\bglobal[ _]step'?[\s:=]+\d+",
    r"throughput: [\d.]*[1-9]",
    r"Avg (?:prompt|generation) throughput: (?:\d*[1-9]|0\.\d*[1-9])",
    r"['\"](?:\w+/)?loss['\"]: ['\"]?[\d.]+",
    (
        r"(?i)\b(?:epochs?|episode|iter(?:ation)?|steps?)\b[\s:=\[#]*\d+.{0,80}"
        r"\b(?:loss|reward|acc|accuracy|lr|score|return|time|throughput|consumed|perplexity|metric)"
    ),
    r"(?i)^\W*(?:\w{1,20} )?(?:epoch|iter(?:ation)?|step|episode)\b.{0,30}\d+ ?/ ?\d+",
    r"(?i)^[\[\s]*(?:epoch|iter(?:ation)?|episode|step)\b[\s:=\[#]*\d+\W*(?:$|done|complete|finished|took)",
)
# A process goes on: what another one does meanwhile says nothing of it.
WORK = (
    r"Application startup complete",
    r"GPU KV cache size",
    r"Maximum concurrency for",
    r"Uvicorn running on",
    r"\b100%\|.*\d+/\d+",
    (
        r"%\|[^|]{0,300}\| *[1-9][\d.]{0,20}\w?/\d[\d.]{0,20}\w? \[[^\]]{0,99}"
        r"(?:it/s|s/it|examples/s|toks/s|samples/s)"
    ),
    r"(?i)\b(?:model|checkpoint)\b.{0,40}\bsaved\b",
    r"(?i)\bsaved\b.{0,40}\b(?:model|checkpoint)\b",
    r"(?i)\b(?:completed|finished|succeeded) successfully\b",
    r"(?i)\bsuccessfully (?:\w+ )?\w+ed\b",
)
PROGRESS_SIGNS = (*STEP, *WORK)
# A program starts: another phase, of which an end before it says nothing. ray 2.60 worker.py, vllm 0.28
# v1/engine/core.py, torch 2.13 distributed/run.py; a command that `set -x` of the shell shows.
START = (
    r"Started a local Ray instance",
    r"Connecting to existing Ray cluster",
    r"Initializing a V\d LLM engine",
    r"torchrun\b",
    r"^(?:\S*/)?python[\d.]* +(?:-\S+ +)*\S+",
)
# The run has ended well. The summary of wandb is no sign of it: it follows an exception, too.
FINISHED = (
    (
        r"\b(?:[Tt]raining|[Ff]ine-?tuning|[Ff]inetune|[Jj]ob|[Rr]un|[Ss]cript|[Pp]rogram|[Ww]orkflow|[Pp]ipeline"
        r"|[Ee]xperiment|[Bb]enchmark|[Ss]weep|[Ee]valuation)\b(?! (?:not|un)\w*)(?:'.{0,80}')?[^.:,;]{0,30}?(?<!not )"
        r"\b(?:completed?|COMPLETED?|finished|FINISHED|done|DONE|succeeded|successful|ended well)\b"
        r"(?!.{0,30}\b(?:exit|with|code|error|(?<!\b0 )fail\w*|status)\b(?! (?:code |status )?0\b))"
    ),
    r"Job '.*' succeeded",
    r"(?i)\bjob.{0,60}\bSUCCEEDED\b",
    r"(?i)state[ :=]+COMPLETED\b",
    r"\bCOMPLETED +0:0\b",
    r"(?i)\bexit(?:ed|ing)?(?: with)?[ _]?(?:exit )?(?:code|status)?[ :=]+0(?:\b(?!\.)|:0\b)",
    r"(?i)\b(?:finished|completed|ended|exits|exited) successfully\W*$",
    r"(?i)^\W*(?:all )?(?:done|finished|success|complete|completed)\W*$",
    r"Final validation",
    r"['\"]train_runtime['\"]:",
    r"`?Trainer\.fit`? stopped: .{0,80}reached",
    r"Number of trials: \d+ .{0,40}\(\d+ TERMINATED\)",
    r"^\s*(Training Progress:|[Ee]poch[^|]{0,30}|[Tt]rain[^|]{0,30})\s*100%\|.*\d+/\d+",
    r"Application shutdown complete",
    r"gracefully shutting down",
    r"Gracefully exiting",
    r"(?i)^\W*(?:results?|outputs?|predictions?|adapter|metrics?|report)\b.{0,30}\b(?:saved|written)\b",
    r"(?i)^\W*(?:saved|wrote|written)\b.{0,30}\b(?:results?|outputs?|predictions?|adapter|metrics|report)\b",
    r"^=+ (?!.*\b(?:failed|errors?)\b)\d+ passed\b",
)
# A program has ended by a signal, or with an exit code other than 0.
EXITED = (
    r"core dumped",
    r"^(?:\S{1,200}: )?(?:line \d+: +\d+ )?Segmentation fault",
    r"terminate called",
    r"^\S{1,200}: line \d+: +\d+ Killed\b",
    r"^(?:\[\d+\][+-]? *)?(?:\d+ )?Killed(?: {2,}\S.*|$)",
    r"^srun: error: .*\bKilled$",
    r"^timeout: sending signal \w+ to command",
    r"Fatal Python error",
    r"(?i)exit(?:ed|ing)?(?: with)?[ _]?(?:exit )?(?:code|status)[ :=]+(?!-15\b)-?[1-9]",
    r"(?i)^exitcode +: -?[1-9]",
    r"Job '.{0,80}' failed",
    r"\bJob.{0,80}\bFAILED\b",
    r"^=+ .{0,80}\b\d+ (?:failed|errors?)\b.{0,80} in [\d.:]+",
)
# What a log is searched for to read it, beside these: exceptions, tracebacks, crashes.
BEGINNINGS = (
    r"(Error|Exception)\b",
    r"Traceback \(most recent",
    r"\b(FATAL|CRITICAL)\b",
    r"Check failed",
    r"\*\*\* SIG",
    r"\[(?:prompt|response|score)\]",
    r"tool_response>",
)


@cache
def _signs() -> tuple[Prefilter, tuple[tuple[str, re.Pattern[str]], ...]]:
    """Return the patterns, each with what it is a sign of, and what finds those that may match."""
    kinds = (("step", STEP), ("work", WORK), ("start", START), ("end", FINISHED), ("exit", EXITED))
    signs = tuple((kind, re.compile(pattern)) for kind, patterns in kinds for pattern in patterns)
    return Prefilter([pattern.pattern for _, pattern in signs]), signs


@lru_cache(100_000)  # lines repeat, and are asked for twice
def signs_of(text: str) -> frozenset[str]:
    """Return what a line is a sign of: `step`, `work`, `start`, `end`, `exit`."""
    prefilter, signs = _signs()
    candidates = sorted(prefilter.find(text.encode("utf-8", "surrogatepass")))
    return frozenset(signs[number][0] for number in candidates if search(signs[number][1], text))
