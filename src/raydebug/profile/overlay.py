"""Lay a profile over a training command: the new command, and each change with its reason."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from raydebug.profile.keys import Key, Value, keys_of
from raydebug.profile.load import Profile, Rule
from raydebug.profile.recognise import Trainer, recognise
from raydebug.worker import names

# A number that means "no limit" to verl: below every limit, but not small.
_UNLIMITED = -1


@dataclass(frozen=True)
class Change:
    """One setting that the profile changed.

    Args:
        setting: our word.
        key: the trainer's key.
        old: what the user's command said, or the trainer's default.
        new: what it says now; None when it was taken out.
        why: the reason.
    """

    setting: str
    key: str
    old: str
    new: str | None
    why: str

    def __str__(self) -> str:
        return f"{self.key}: {self.old} -> {'(taken out)' if self.new is None else self.new} ({self.why})"


@dataclass(frozen=True)
class Overlay:
    """What a profile makes of a command: the changes, and the new arguments of the trainer."""

    changes: list[Change]
    argv: list[str]


def apply(argv: Sequence[str], *, profile: str) -> list[str] | None:
    """Return a training command's own arguments with a profile laid over them, and say on stderr what changed.

    Args:
        argv: the whole command, as `sys.orig_argv` has it.
        profile: the profile's name.

    Returns:
        What follows the module or file in the new command; None when the command is no training that we know.

    Raises:
        RaydebugError: the profile is unknown, or does not know the installed version of the trainer.
    """
    trainer = recognise(argv)
    if trainer is None:
        return None
    from raydebug import render
    from raydebug.profile.load import load_profile

    overlay = overlay_profile(
        load_profile(profile), trainer, argv[trainer.overrides_at :], os.environ, version=_installed_version(trainer)
    )
    render.say(f"raydebug: the profile '{profile}' changes {len(overlay.changes)} settings of {trainer.module}:")
    for change in overlay.changes:
        render.say(f"  {change}")
    return overlay.argv


def _installed_version(trainer: Trainer) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(trainer.module.partition(".")[0])
    except PackageNotFoundError:
        return "unknown"


def overlay_profile(
    profile: Profile, trainer: Trainer, overrides: Sequence[str], environ: Mapping[str, str], *, version: str = "0.9"
) -> Overlay:
    """Lay a profile over a trainer's arguments.

    Args:
        profile: what to lay over.
        trainer: whose arguments they are.
        overrides: its arguments: Hydra overrides, and Hydra's own options, which pass as they are.
        environ: VERL_PLATFORM decides which parts of the profile hold, the node's GPUs how many ranks it has at most.
        version: of the trainer's package.

    Raises:
        RaydebugError: the version is not one whose keys are known.
    """
    keys = keys_of(trainer.name, version)
    if keys is None:
        raise _unknown_version(profile, trainer, version)
    command = _Command(list(overrides))
    settings = _Settings(keys, command)
    platform = environ.get("VERL_PLATFORM", "").strip().lower()
    for rule in profile.rules:
        if rule.only_on in (None, platform) and settings.concerns(rule.word):
            settings.obey(_as_many_as_the_node_has(rule, environ))
    settings.fit()
    return Overlay(settings.changes, command.arguments)


def _as_many_as_the_node_has(rule: Rule, environ: Mapping[str, str]) -> Rule:
    """Return a rule; a limit on ranks is what `raydebug up --gpus` was told, where that is known."""
    gpus = environ.get(names.NODE_GPUS, "")
    if rule.word != "gpus_per_node" or rule.kind != "at_most" or not gpus.isdigit():
        return rule
    return replace(rule, value=int(gpus), why="the logical GPUs that `raydebug up --gpus` gave each node")


def _unknown_version(profile: Profile, trainer: Trainer, version: str) -> Exception:
    from raydebug.errors import Exit, RaydebugError
    from raydebug.profile.keys import COLUMNS

    known = ", ".join(number for name, number in COLUMNS if name == trainer.name)
    return RaydebugError(
        f"the profile '{profile.name}' cannot be laid over {trainer.module}",
        cause=f"verl {version} is installed; the keys of these versions are known: {known}",
        fix="install a known version, or run without --profile",
        code="profile.version",
        exit_code=Exit.USAGE,
    )


class _Command:
    """A trainer's arguments, by Hydra key. The last override of a key is the one that counts."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments

    def get(self, path: str) -> str | None:
        said = [argument.partition("=")[2] for argument in self.arguments if _key_of(argument) == path]
        return said[-1] if said else None

    def replace(self, path: str, value: str | None, *, added: bool) -> None:
        self.arguments[:] = [argument for argument in self.arguments if _key_of(argument) != path]
        if value is not None:
            # "++" sets a key whether or not the config has it. Source: Hydra 1.3, override grammar.
            self.arguments.append(f"{'++' if added else ''}{path}={value}")


def _key_of(argument: str) -> str | None:
    """Return the key of an override; None for an option, and for a deletion (`~key`)."""
    key, sign, _ = argument.partition("=")
    return key.lstrip("+") if sign and not argument.startswith(("-", "~")) else None


@dataclass
class _Settings:
    """The settings of a command in our words, and what was changed."""

    keys: dict[str, Key]
    command: _Command
    changes: list[Change] = field(default_factory=list)
    _limits: dict[str, Rule] = field(default_factory=dict)

    def concerns(self, word: str) -> bool:
        """Tell whether this training has the part that a setting belongs to."""
        key = self.keys.get(word)
        return key is not None and (key.only_with is None or self._uses_critic())

    def _uses_critic(self) -> bool:
        # Source: verl 0.9.1 trainer/ppo/utils.py need_critic: the estimator gae needs one, and gae is the default.
        wanted = (self.command.get("critic.enable") or "").lower()
        estimator = (self.command.get("algorithm.adv_estimator") or "gae").strip("'\"")
        return wanted == "true" or (wanted in ("", "null") and estimator == "gae")

    def obey(self, rule: Rule) -> None:
        if rule.kind == "unset":
            if self.command.get(self.keys[rule.word].path) is not None:
                self._change(rule.word, None, rule.why)
        elif rule.kind == "set":
            self._change(rule.word, _text(rule.value), rule.why)
        else:
            self._limits[rule.word] = rule
            current = self.number(rule.word)
            assert isinstance(rule.value, int)
            if current is None or current == _UNLIMITED or current > rule.value:
                self._change(rule.word, _text(rule.value), rule.why)

    def number(self, word: str) -> int | None:
        """Return a setting's number; None when nobody said one, or it is no plain number."""
        key = self.keys[word]
        said = self.command.get(key.path)
        try:
            return int(said) if said is not None else key.default if isinstance(key.default, int) else None
        except ValueError:
            return None

    def fit(self) -> None:
        """Make the shrunk numbers divide each other as the trainer demands.

        Source: verl 0.9.1 utils/config.py:validate_config (train batch * n by ranks), workers/engine_workers.py:262
        (mini batch by ranks), workers/config/actor.py:validate (mini batch not above train batch).
        """
        ranks = (self.number("gpus_per_node") or 1) * (self.number("nodes") or 1)
        rollouts = self.number("rollouts_per_prompt") or 1
        self._at_most("tensor_parallel", ranks, "no more ranks than there are")
        batch = self._shrunk("train_batch_size")
        if batch is not None and batch * rollouts % ranks:
            batch = -(-batch // ranks) * ranks
            self._change("train_batch_size", str(batch), f"a multiple of the {ranks} ranks")
        batch = self.number("train_batch_size") or 1
        if (self._shrunk("train_samples") or batch) < batch:
            self._change("train_samples", str(batch), "one batch")
        for part in ("", "critic_"):
            if not self.concerns(f"{part}mini_batch_size"):
                continue
            mini = min(self.number(f"{part}mini_batch_size") or batch, batch)
            mini = next((n for n in range(mini, 0, -1) if batch % n == 0 and n * rollouts % ranks == 0), batch)
            if mini != self.number(f"{part}mini_batch_size"):
                self._change(f"{part}mini_batch_size", str(mini), f"divides the batch of {batch} and its {ranks} ranks")
            self._divide(f"{part}micro_batch_size", mini * rollouts // ranks)
        for word in ("rollout_log_prob_micro_batch_size", "ref_log_prob_micro_batch_size"):
            self._divide(word, batch * rollouts // ranks)
        prompt, response = self.number("prompt_tokens"), self.number("response_tokens")
        if prompt and response:
            self._at_most("rollout_model_tokens", prompt + response, "the longest prompt and the longest response")

    def _shrunk(self, word: str) -> int | None:
        """Return a number that the profile set; None when the user's own was kept."""
        rule = self._limits.get(word)
        number = self.number(word)
        return number if rule is not None and number == rule.value else None

    def _at_most(self, word: str, limit: int, why: str) -> None:
        number = self.number(word)
        if number is None or number > limit:
            self._change(word, str(limit), why)

    def _divide(self, word: str, whole: int) -> None:
        """Lower a number to the next that divides the whole."""
        number = self.number(word)
        if number and whole > 0 and whole % number:
            divisor = next(n for n in range(min(number, whole), 0, -1) if whole % n == 0)
            self._change(word, str(divisor), f"divides {whole}")

    def _change(self, word: str, new: str | None, why: str) -> None:
        key = self.keys[word]
        said = self.command.get(key.path)
        old = said if said is not None else _text(key.default)
        for other in key.instead_of:
            if self.command.get(other) is not None:
                self.changes.append(Change(word, other, str(self.command.get(other)), None, f"now {key.path}"))
                self.command.replace(other, None, added=False)
        if new is not None and said is None and new == _text(key.default) and not key.added:
            return
        if new == said:
            return
        earlier = next((change for change in self.changes if change.setting == word and change.key == key.path), None)
        if earlier is not None:
            self.changes.remove(earlier)
            old = earlier.old
        self.command.replace(key.path, new, added=key.added)
        self.changes.append(Change(word, key.path, old, new, why))


def _text(value: Value) -> str:
    """Write a value as Hydra reads it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
