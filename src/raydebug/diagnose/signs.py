"""Signs of the course of a run in its lines: progress, the end, a failure. They are data, as the rules are.

Each has a literal text of three bytes or more in all of its matches, so that a log is searched for it quickly.
Sources: verl 0.9 trainer/ppo, vllm 0.28 v1/metrics/loggers.py, transformers 5.9 trainer_callback.py, lightning 2.5,
OpenRLHF 0.9, Megatron-LM 0.12 training.py, deepspeed 0.17 launcher, torchtitan 0.2, ray 2.60 jobs and tune, Slurm 24.
"""

from __future__ import annotations

# The run goes on, whichever of its processes says so: a step, an epoch, a served request.
STEP = (
    r"\bstep:\d+ -",
    r"Training Progress:.*\d+/\d+",
    r"Total training steps: \d+",
    r"\bglobal[ _]step'?[\s:=]+\d+",
    r"throughput: [\d.]*[1-9]",
    r"Avg (prompt|generation) throughput",
    r"['\"](?:\w+/)?loss['\"]: ['\"]?[\d.]+",
    (
        r"(?i)\b(?:epochs?|episode|iter|iteration|steps?|round|trial|batch)\b[\s:=\[#]*\d+.{0,80}"
        r"\b(?:loss|reward|acc|accuracy|lr|score|return|time|throughput|consumed|perplexity|metric)"
    ),
    r"(?i)^\W*(?:training|train|global|epoch|iter|iteration|step|episode)\b.{0,30}\d+ ?/ ?\d+",
    r"(?i)^[\[\s]*(?:epoch|iteration|episode|step)\b[\s:=\[#]*\d+\W*(?:$|done|complete|finished|took)",
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
        r"(?:it/s|s/it|examples?/s|B/s|toks?\w*/s|samples?/s|batch\w*/s|req\w*/s|prompts?/s)"
    ),
    r"(?i)\b(?:model|checkpoint|weights|adapter|results?|metrics)\b.{0,40}\b(?:saved|written|loaded|uploaded)\b",
    r"(?i)\b(?:saved|loaded|uploaded|wrote)\b.{0,40}\b(?:model|checkpoint|weights|adapter|results?|metrics)\b",
    (
        r"(?i)\b(?:retry|retrying|attempt|recovered|restarted|reconnected|resumed)\b.{0,60}"
        r"\b(?:succeeded|successful|successfully|ok)\b"
    ),
    r"(?i)\b(?:completed|finished|succeeded) successfully\b",
    r"(?i)\bsuccessfully (?:\w+ )?\w+ed\b",
)
PROGRESS = (*STEP, *WORK)
# The run has ended well. The summary of wandb is no sign of it: it follows an exception, too.
FINISHED = (
    (
        r"(?i)\b(?:training|fine-?tuning|finetune|job|run|script|program|workflow|pipeline|experiment|benchmark|sweep"
        r"|evaluation)\b(?! (?:not|un)\w*)(?:'.{0,80}')?[^.:,;]{0,30}?(?<!not )"
        r"\b(?:complete|completed|finished|done|succeeded|successful|ended well)\b"
        r"(?!.{0,30}\b(?:exit|with|code|error|fail\w*|status)\b(?! (?:code |status )?0\b))"
    ),
    r"Job '.*' succeeded",
    r"(?i)\bjob.{0,60}\bSUCCEEDED\b",
    r"(?i)state[ :=]+COMPLETED\b",
    r"(?i)\b(?:exit(?:ed|ing)?|return(?:ed)?)(?: with)?[ _]?(?:code|status)?[ :=]+0(?:\b(?!\.)|:0\b)",
    r"(?i)\b(?:finished|completed|ended|exits|exited) successfully\W*$",
    r"(?i)^\W*(?:all )?(?:done|finished|success|complete|completed)\W*$",
    r"Final validation",
    r"['\"]train_runtime['\"]:",
    r"`?Trainer\.fit`? stopped: .{0,80}reached",
    r"Number of trials: \d+ .{0,40}\(\d+ TERMINATED\)",
    r"^\s*(Training Progress:|[Ee]poch[^|]{0,30}|[Tt]rain[^|]{0,30})\s*100%\|.*\d+/\d+",
    r"Application shutdown complete",
    r"gracefully shutting down",
)
# A program has ended by a signal, or with an exit code other than 0.
EXITED = (
    r"core dumped",
    r"Segmentation fault",
    r"terminate called",
    r"\bKilled\b",
    r"Fatal Python error",
    r"(?i)exit(?:ed|ing)?(?: with)?[ _]?(?:exit )?(?:code|status)[ :=]+(?!-15\b)-?[1-9]",
    r"\b[Jj]ob\b.{0,80}\b(?:failed|FAILED)\b",
)
# A failure, whatever its cause: such an end, a traceback, or a fatal message.
FATAL = (
    *EXITED,
    r"Traceback \(most recent",
    r"^\W*(FATAL|Fatal|fatal)\b",
    r"\b(?:FATAL|Fatal|fatal)( error)?:",
    r"Check failed",
    r"^\s*raise \w+",
    r"SIG(SEGV|ABRT|KILL|BUS)",
    r"^[Ee]rror\b",
    r"\berror:",
    r"\b[Aa]bort(ed|ing)\b",
    r"\bpanic(ked)?( at|:)",
)
