"""Stage `model`: config, tokenizer, chat template, weights, who knows the architecture, and whether it all fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydebug.check import command, model_fit, model_shards
from raydebug.check.ask import ask
from raydebug.check.finding import Finding, error, warning
from raydebug.check.stage import Checked
from raydebug.check.subject import Subject

BUDGET_S = 30.0
PATH = "actor_rollout_ref.model.path"
TRUST = "actor_rollout_ref.model.trust_remote_code"

Facts = Mapping[str, Any]


def check(subject: Subject) -> Checked:
    """Ask the cluster's Python for the model behind the command, and judge it."""
    facts = ask(subject, "model", budget_s=BUDGET_S, **subject.as_request())
    return Checked(judge(subject, facts), tuple(facts.get("read", ())))


def judge(subject: Subject, facts: Facts) -> list[Finding]:
    """Return the findings about a command's model. Pure."""
    if "config_error" in facts:
        return [command.refused(facts["config_error"], subject.overrides)]
    if "json" not in facts:
        return list(_nothing_there(facts))
    found = [*_architecture(facts), *_tokenizer(facts)]
    found += model_shards.judge(facts)
    if "sizes" in facts:
        found += model_fit.judge(facts, facts["variables"])
    return found


def _nothing_there(facts: Facts) -> Iterator[Finding]:
    path = facts["path"]
    if facts.get("remote"):
        yield warning(
            "model.path",
            f"{path} is fetched by the trainer; it was not looked at",
            why="a check fetches nothing",
            fix=f"copy it here and name the folder with {PATH} to have it checked",
        )
    elif facts.get("is_file"):
        yield error(
            "model.path",
            f"{PATH}: {path} is a file",
            why="transformers and vLLM want the folder with config.json in it",
            fix=f"{PATH}={path.rpartition('/')[0] or '.'}",
            overrides={PATH: path.rpartition("/")[0] or "."},
        )
    elif facts["folder"] is None and facts.get("is_hub"):
        yield error(
            "model.not-cached",
            f"{path} is neither a folder here nor in the Hub's cache",
            why="a check fetches nothing, and with HF_HUB_OFFLINE=1 the training cannot either",
            fix=f"`hf download {path}` where the training runs (HF_TOKEN for a gated one), or {PATH}=FOLDER",
        )
    elif facts["folder"] is None:
        yield error(
            "model.path",
            f"{PATH}: there is no folder {path}",
            why="where the training runs; transformers would take it for a name on the Hub: 'Repo id must be ...'",
            fix=f"{PATH}=FOLDER, as the cluster sees it (containers see your project as /workspace)",
        )
    elif "config_broken" in facts:
        yield error(
            "model.config",
            f"{path}/config.json cannot be read",
            why=facts["config_broken"],
            fix="copy the model again, whole",
        )
    else:
        inside = ", ".join(facts.get("files") or []) or "nothing"
        checkpoint = any(name.startswith(("model_world_size", "extra_state", "fsdp_config")) for name in facts["files"])
        yield error(
            "model.config",
            f"{path} has no config.json",
            why=f"it holds {inside[:200]}",
            fix="python -m verl.model_merger merge --backend fsdp ... makes a model of a checkpoint of verl"
            if checkpoint
            else "copy the whole folder of the model, or name the one with config.json in it",
        )


def _architecture(facts: Facts) -> Iterator[Finding]:
    said = facts["json"]
    names = said.get("architectures") or []
    name, kind = (names or ["?"])[0], said.get("model_type")
    if "remote_code" in facts:
        yield error(
            "model.remote-code",
            f"{facts['path']} needs code of its own: {', '.join(map(str, facts['remote_code'].values()))[:120]}",
            why=f"transformers {facts['transformers_version']} has no model_type '{kind}'; a check does not run it",
            fix=f"read that code, then {TRUST}=True data.trust_remote_code=True; the check runs it then too",
        )
        return
    if len(names) != 1:
        yield error(
            "model.config",
            f"config.json names {len(names)} architectures",
            why="verl asserts 'Expect only one architecture'",
            fix='write the class that the weights are of: "architectures": ["Qwen2ForCausalLM"]',
        )
        return
    if not facts["type_known"] and "config_refused" in facts:
        yield error(
            "model.architecture",
            f"transformers {facts['transformers_version']} does not know model_type '{kind}' ({name})",
            why=facts["config_refused"]["message"].partition("\n")[0][:200],
            fix="a model of a known type, or the transformers release that its card names (verl 0.9.1 takes <5.11)",
        )
        return
    if "config_refused" in facts:
        yield error(
            "model.config",
            f"transformers refuses config.json: {facts['config_refused']['type']}",
            why=facts["config_refused"]["message"].replace("\n", " ")[:250],
            fix="mend that value in config.json, or copy the file again",
        )
        return
    if not facts["class_known"] and not said.get("auto_map"):
        yield error(
            "model.architecture",
            f"transformers {facts['transformers_version']} has no class {name}",
            why=f"config.json names it (model_type '{kind}'); actor and reference model are loaded by it",
            fix="a model of a known architecture, or the transformers release that its card names",
        )
        return
    vllm = facts["vllm"]
    if not vllm or vllm["known"]:
        return
    if vllm["until"]:
        yield error(
            "model.architecture",
            f"vLLM no longer has {name}: {vllm['until']} was the last version",
            why="the rollout engine refuses it by that name",
            fix="another model; older versions of vLLM do not fit this verl",
        )
    elif facts.get("vllm_may_wrap"):
        yield warning(
            "model.architecture",
            f"vLLM has no model of its own for {name}",
            why="it takes transformers' implementation (the Transformers backend), which is slower",
            fix="nothing, or a model among those of vLLM's list of supported models",
        )
    else:
        yield error(
            "model.architecture",
            f"vLLM has no model for {name}",
            why=f"none of its {vllm['models']} architectures, and transformers' class cannot stand in for it",
            fix="a model among those of vLLM's list of supported models",
        )


def _tokenizer(facts: Facts) -> Iterator[Finding]:
    found = facts["tokenizer"]
    if "remote_code" in facts and "failed" in found:
        return  # it needs the model's own code too
    if "failed" in found:
        yield error(
            "model.tokenizer",
            f"the tokenizer of {facts['path']} cannot be loaded",
            why=f"{found['failed']['type']}: {found['failed']['message'].replace(chr(10), ' ')[:250]}",
            fix="copy tokenizer.json and tokenizer_config.json of the model again, or name another folder with "
            "actor_rollout_ref.model.tokenizer_path",
        )
        return
    if not found["template"]:
        yield error(
            "model.chat-template",
            "the tokenizer has no chat template",
            why="verl renders every prompt with it: 'Cannot use chat template functions ...'",
            fix="the instruct variant of the model, or actor_rollout_ref.model.custom_chat_template=TEMPLATE",
        )
    elif "template_failed" in found:
        yield error(
            "model.chat-template",
            "the chat template cannot render one message of a user",
            why=f"{found['template_failed']['type']}: {found['template_failed']['message'][:200]}",
            fix="mend chat_template.jinja, or set actor_rollout_ref.model.custom_chat_template",
        )
    elif not found["says_it"]:
        yield error(
            "model.chat-template",
            "the chat template leaves out what the user says",
            why="a rendered message does not hold its own content: each prompt would be the same",
            fix="mend chat_template.jinja, or set actor_rollout_ref.model.custom_chat_template",
        )
    if found["eos"] is None:
        yield error(
            "model.tokenizer",
            "the tokenizer has no end-of-sequence token",
            why="verl pads and ends sequences with it",
            fix='"eos_token" in tokenizer_config.json',
        )
    width = facts.get("sizes", {}).get("vocab_size")
    if width is not None and found["largest_id"] >= width:
        yield error(
            "model.vocabulary",
            f"the tokenizer has ids up to {found['largest_id']}, the model's embedding {width} rows",
            why="an id beyond it is a device-side assert ('index out of range') at some step",
            fix="the tokenizer that belongs to the model, or resize_token_embeddings and save both",
        )
