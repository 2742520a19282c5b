"""A model's tokenizer: by transformers, or by `tokenizers` and jinja2 alone where that is not installed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from raydebug.check.probes import Facts
from raydebug.check.probes.plan import Plan
from raydebug.trainers.config import TrainingConfig, first_missing
from raydebug.trainers.hub import model_folder

SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def can_tokenize(plan: Plan, part: str) -> bool:
    """Return whether the tokenizer of a command's model can be loaded here."""
    if first_missing("tokenizers", "jinja2") is None and (_folder(plan.config) / "tokenizer.json").is_file():
        return True
    return plan.has(part, "transformers")


def load_tokenizer(config: TrainingConfig) -> Any:
    """Return the model's tokenizer, from disk or the Hub's cache; nothing is fetched, no code of the model is run.

    Source: verl 0.9.1 workers/config/model.py: tokenizer_path, else hf_config_path, else path; custom_chat_template.
    """
    tokenizer: Any
    if first_missing("transformers") is None:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
        from transformers import AutoTokenizer

        path = os.path.expanduser(str(config.get("tokenizer") or config.get("model")))  # noqa: PTH111
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=bool(config.get("trust_remote_code")))
    else:
        tokenizer = PlainTokenizer(_folder(config))
    if config.get("chat_template"):
        tokenizer.chat_template = config.get("chat_template")
    return tokenizer


def _folder(config: TrainingConfig) -> Path:
    name = str(config.get("tokenizer") or config.get("model"))
    return model_folder(name) or Path(name)


class PlainTokenizer:
    """A tokenizer.json and its chat template, with the names that transformers' tokenizers have.

    Source: transformers 5.9.0 tokenization_utils_base.py (where the template is), utils/chat_template_utils.py
    _compile_jinja_template.

    Raises:
        Exception: of `tokenizers`: the file is broken. OSError, ValueError: another file is.
    """

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._own = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._config = _json(folder / "tokenizer_config.json")
        self.chat_template = self._template(folder)
        self._names = {name: text for name in SPECIAL if (text := self._token(name)) is not None}

    def _template(self, folder: Path) -> str | None:
        file = folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8")
        said = _json(folder / "chat_template.json").get("chat_template", self._config.get("chat_template"))
        if isinstance(said, list):  # several, each with a name
            said = next((one.get("template") for one in said if one.get("name") == "default"), None)
        return said if isinstance(said, str) else None

    def _token(self, name: str) -> str | None:
        said = self._config.get(name)
        text = said.get("content") if isinstance(said, dict) else said
        return text if isinstance(text, str) else None

    @property
    def eos_token_id(self) -> int | None:
        """The id of the token that ends a sequence; None without one."""
        found: int | None = self._own.token_to_id(self._names.get("eos_token", ""))
        return found

    def get_vocab(self) -> dict[str, int]:
        """Return every token and its id."""
        found: dict[str, int] = self._own.get_vocab(with_added_tokens=True)
        return found

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        """Return the ids of a text."""
        return {"input_ids": self._own.encode(text, add_special_tokens=add_special_tokens).ids}

    def apply_chat_template(self, messages: Any, *, add_generation_prompt: bool, tokenize: bool, **options: Any) -> str:
        """Return messages as the template has them."""
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        assert not tokenize

        def refuse(message: str) -> None:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = _now
        template = environment.from_string(str(self.chat_template))
        names = {**self._names, **options, "add_generation_prompt": add_generation_prompt}
        return str(template.render(messages=messages, tools=None, documents=None, **names))


def _now(form: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(form)  # noqa: DTZ005 - as transformers does


def _json(file: Path) -> Facts:
    if not file.is_file():
        return {}
    said = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(said, dict):
        raise ValueError(f"{file} is not a JSON object")
    return said
