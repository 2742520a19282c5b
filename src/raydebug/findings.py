"""A finding: what is wrong, why, and how to fix it; and the stable code of every finding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# Every code and its meaning: stable words for scripts. docs/03-checks.md lists them.
CODES: dict[str, str] = {
    # the environment
    "env.package-missing": "a package that the training imports is not installed in the cluster's Python",
    "env.version-clash": "two installed packages do not fit each other, by what one of them declares",
    "env.version-untested": "a package whose inside raydebug uses has another version than it is tested with",
    "env.own-trainer": "the command runs a fork of the trainer from its own folder, not the installed one",
    "env.version-unlocked": "a package has another version than the lock of the flavour",
    "env.sbom-differs": "installed packages differ from the image's bill of materials, or from the lock",
    "env.python-version": "the Python version is not one that the flavour is made for",
    "env.user-site": "a package comes from ~/.local instead of the environment",
    "env.debugger-flag": "a variable of a debugger is wrong, ignored, or left over",
    "env.attention-backend": "VLLM_ATTENTION_BACKEND is unknown to this vLLM, or is not read by it",
    "env.vllm-variable": "a VLLM_ variable is misspelt, so that vLLM ignores it",
    "env.vllm-value": "a VLLM_ variable has a value that vLLM does not take",
    "env.slow-flag": "a debugging variable that makes everything slow is left over",
    "env.preload-missing": "LD_PRELOAD names a file that is not there",
    "env.interface-missing": "a network interface that a variable names is not there",
    "env.interface-not-to-head": "a variable names another network interface than the one that leads to Ray's head",
    "env.offline-clash": "the switches for offline use contradict each other",
    "env.hub-cache": "the Hugging Face cache cannot be written",
    "env.port-taken": "a port that a variable fixes is in use",
    "env.shared-memory": "shared memory (/dev/shm) is too small or full",
    "env.open-files": "too few open files are allowed",
    "env.processes": "too few processes and threads are allowed",
    "env.memory": "the memory that the container may use is less than the processes of a training take",
    "env.spill-in-memory": "objects that Ray spills would go to a file system in memory",
    "env.nccl": "how NCCL would communicate: P2P, InfiniBand or sockets",
    "env.locked-memory": "too little memory may be locked for the InfiniBand cards",
    "env.disk-full": "a disk that the run writes to is full",
    "env.tmpdir-long": "the path of the temporary folder is too long for unix sockets",
    "env.compiler": "Triton finds no C compiler",
    "env.python-headers": "Triton finds no Python.h",
    "env.no-gpu": "the training wants a GPU, and there is none",
    "env.driver-silent": "the NVIDIA driver does not answer",
    "env.driver-old": "the NVIDIA driver is too old for the CUDA of torch",
    "env.torch-without-cuda": "torch is a build without CUDA on a machine with GPUs",
    "env.gpu-busy": "other processes hold memory of a GPU",
    "env.gpu-old": "a GPU is too old for FlashAttention 2",
    "env.node-differs": "a node has another version of a package than the head",
    # the command's config; reported by the first stage that reads it
    "command.override": "an override names no setting, or cannot be read",
    "command.value-missing": "a setting that has no default is not given",
    "command.value": "a setting has a value that it cannot have",
    "command.batch": "batch sizes do not divide each other, or the number of ranks",
    "command.parallel": "parallel sizes do not fit the number of GPUs",
    "command.gpus": "the command asks for more GPUs than the cluster has",
    "command.cpu": "the command has a setting that a CPU cannot do",
    "command.refused": "verl's own validation refuses the config",
    "command.logger": "a logger would ask for a key, and a job has no terminal",
    # the data
    "data.image-column": "prompts name images, and the column of images is not there",
    "data.image-model": "the data has images, and the model takes none",
    "data.image-count": "a row has another number of images than its prompt names",
    "data.image-broken": "an image cannot be decoded",
    "data.file-missing": "a data file is not there",
    "data.not-a-file": "a data file is a folder, or no file",
    "data.format": "a data file is of a kind that verl does not read",
    "data.unreadable": "a data file is damaged, or no parquet or JSON",
    "data.columns-differ": "the files of one split have different columns",
    "data.column-missing": "a column that verl reads is not there",
    "data.column-type": "a column has another type than verl expects",
    "data.too-few-rows": "there are fewer rows than one batch takes",
    "data.prompt-too-long": "prompts are longer than max_prompt_length",
    "data.prompt-template": "the chat template cannot render a prompt of the data",
    "data.lengths-unknown": "prompt lengths could not be measured",
    "data.reward-missing": "the file or function of the reward is not there",
    "data.reward-import": "the reward's file fails when it is imported",
    "data.reward-raises": "the reward function fails on a row of the data",
    "data.reward-value": "the reward function returns what verl cannot use",
    "data.reward-source": "verl has no reward for the data's data_source",
    # the model
    "model.path": "the model's folder is not there, or not looked at",
    "model.not-cached": "the model is named as on the Hub, and is not in the cache",
    "model.config": "config.json is missing, damaged, or refused by transformers",
    "model.torchvision": "the model takes images, and torchvision is not installed",
    "model.processor": "the processor of a model that takes images is missing or damaged",
    "model.load-format": "rollouts would not see the images: vLLM loses their normalization",
    "model.equal-lengths": "verl fails on images in a batch of equally long sequences",
    "model.remote-code": "the model needs code of its own, which the command does not allow",
    "model.architecture": "transformers or vLLM does not know the architecture",
    "model.tokenizer": "the tokenizer cannot be loaded, or lacks a token",
    "model.chat-template": "there is no chat template, or it does not render a message",
    "model.vocabulary": "the tokenizer has ids that the model has no row for",
    "model.weights": "there are no weights, or none that are safe to load",
    "model.shard": "a weight file is missing, cut off, or not what it says",
    "model.config-mismatch": "config.json and the weights are not of one model",
    "model.context": "prompts and answers do not fit the model's context",
    "model.heads": "the attention heads cannot be split as the command wants",
    "model.attention": "the attention that the command wants is not installed",
    "model.kv-cache": "the KV cache cannot hold one sequence",
    "model.memory": "weights, optimizer and cache do not fit the memory",
    # vLLM
    "engine.import": "vLLM cannot be imported",
    "engine.settings": "vLLM refuses the settings that the command gives it",
    "engine.start": "vLLM fails while it loads the model or makes its cache",
    "engine.token": "vLLM fails while it generates a token",
    # two steps of training
    "train.not-run": "`raydebug run` refuses the command, or stops it for resources that the cluster never has",
    "train.failed": "the training fails; the first cause in its log is named",
    "train.no-step": "the training ends well without a step",
    "train.out-of-time": "the training does not get through two steps in time",
    "train.not-a-number": "a loss or a gradient is nan or infinite",
    # the metrics of the steps, in `check train` and in `run`
    "train.rollout-mismatch": "the rollout engine and the actor give the same tokens other probabilities",
    "train.responses-cut": "no response of several steps ends before the limit of length",
    "train.rewards-equal": "all rewards of a step are equal, in several steps",
    "train.advantages-zero": "all advantages are zero, in several steps",
    "train.gradient-zero": "the actor's gradient is zero, in several steps",
    "train.gradient-explodes": "the actor's gradient is nan, infinite, or many times that of the steps before",
    "train.entropy-collapse": "the entropy of the policy has fallen to a small part of its first value",
    # a running cluster
    "cluster.no-job": "the cluster does not run the job that asks it",
    "cluster.node": "a node is dead, or runs no task",
    "cluster.clock": "the clock of a node is off",
    "cluster.ports": "a node cannot reach another",
    "cluster.all-reduce": "a sum over all nodes fails",
    # any stage
    "check.out-of-time": "a check took too long and was ended",
    "check.died": "the process of a check died",
    "check.failed": "a check itself failed",
    "check.not-run": "a part of a check was not run, as a package or a value is missing",
    "check.refused": "the command cannot be checked as it is given",
}

# error: the training would fail, or do something else than was asked; the stage fails. warning: it may. note: to know.
SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One thing that a check found.

    Args:
        code: a stable word of `CODES`, such as `data.column-missing`.
        severity: `error`, `warning` or `note`.
        what: what is wrong, with the value; no full stop.
        why: the consequence, and the source of this rule.
        fix: one command or change that fixes it.
        overrides: the fix as overrides of the command, where it is one: Hydra key -> value, None takes it out.
        variables: the fix as environment variables, where it is one: name -> value, None takes it out.
    """

    code: str
    severity: str
    what: str
    why: str
    fix: str
    overrides: Mapping[str, str | None] = field(default_factory=dict)
    variables: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.code in CODES, self.code
        assert self.severity in SEVERITIES, self.severity

    def as_json(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("code", "severity", "what", "why", "fix")}

    def as_record(self) -> dict[str, Any]:
        """Return all of it, for the cache of earlier runs."""
        return {**self.as_json(), "overrides": dict(self.overrides), "variables": dict(self.variables)}


def error(code: str, what: str, *, why: str, fix: str = "", **fixes: Mapping[str, str | None]) -> Finding:
    """Return a finding that fails its stage; without other words its fix is the overrides."""
    return Finding(code, "error", what, why, fix or as_settings(fixes.get("overrides", {})), **fixes)


def warning(code: str, what: str, *, why: str, fix: str = "", **fixes: Mapping[str, str | None]) -> Finding:
    """Return a finding that lets its stage pass; its fix as in `error`."""
    return replace(error(code, what, why=why, fix=fix, **fixes), severity="warning")


def note(code: str, what: str, *, why: str, fix: str) -> Finding:
    """Return a finding that is only to know."""
    return Finding(code, "note", what, why, fix)


def as_settings(overrides: Mapping[str, str | None]) -> str:
    """Return overrides as the words of a command."""
    return " ".join(f"{key}={value}" for key, value in overrides.items())


def describe_exception(failure: BaseException) -> dict[str, str]:
    """Return an exception as data: its first cause and the line that raised it."""
    import traceback

    first = failure
    while (before := first.__cause__ or (None if first.__suppress_context__ else first.__context__)) is not None:
        first = before
    frames = traceback.extract_tb(first.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    if isinstance(first, SyntaxError):
        where = f"{first.filename}:{first.lineno}"
    return {
        "type": type(first).__name__,
        "message": str(first),
        "where": where,
        "traceback": "".join(traceback.format_exception(failure))[-8000:],
    }
