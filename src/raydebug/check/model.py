"""Stage `model`: config, tokenizer, chat template, weights, support of the architecture, and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydebug.check import images, model_fit
from raydebug.check.config import not_run
from raydebug.check.files import spelled, without_rules
from raydebug.check.probes import Facts
from raydebug.check.target import Target
from raydebug.findings import Finding, error, note, warning

BUDGET_S = 30.0
COPY_AGAIN = "copy or download that file again (`hf download` checks what it wrote)"


def judge(target: Target, facts: Facts) -> list[Finding]:
    """Return the findings about a command's model. Pure."""
    keys = target.config(facts["config"]).keys
    found = list(not_run(facts))
    has_rules = target.checks.rules is not None
    if not has_rules:
        found.append(without_rules(target, "the support and the memory of the model"))
    if "json" not in facts:
        return [*_nothing_there(facts, spelled(target, facts, "model")), *found]
    if not has_rules:
        tokenizer = _no_tokenizer(facts, keys) if "failed" in facts.get("tokenizer", {}) else ()
        return [*tokenizer, *judge_shards(facts), *found]
    if "transformers_version" in facts:
        found += _architecture(facts, keys)
    if "tokenizer" in facts:
        found += _tokenizer(facts, keys)
    if "processor" in facts:
        found += images.judge_processor(facts, keys)
    found += judge_shards(facts)
    if "sizes" in facts:
        found += model_fit.judge(target, facts, facts["variables"])
    return found


def _nothing_there(facts: Facts, key: str) -> Iterator[Finding]:
    if facts.get("unnamed"):  # where the config was not read, its model is not known
        if facts["empty"]:
            why = "an empty shell variable gives an empty value"
            yield error("model.path", f"{key} is empty", why=why, fix=f"{key}=FOLDER, or a name on the Hub")
        else:
            why = "a fork may name its models by keys of its own, or only the shell knows the name"
            yield note("check.not-run", f"no model was looked at: {key} has no value", why=why, fix=f"{key}=FOLDER")
        return
    path = facts["path"]
    if facts.get("remote"):
        yield warning(
            "model.path",
            f"{path} is fetched by the trainer; it was not looked at",
            why="a check fetches nothing",
            fix=f"copy it here and name the folder with {key} to have it checked",
        )
    elif facts.get("is_file"):
        yield error(
            "model.path",
            f"{key}: {path} is a file",
            why="transformers and vLLM want the folder with config.json in it",
            overrides={key: path.rpartition("/")[0] or "."},
        )
    elif facts["folder"] is None and facts.get("is_hub"):
        yield error(
            "model.not-cached",
            f"{path} is neither a folder here nor in the Hub's cache",
            why="a check fetches nothing, and with HF_HUB_OFFLINE=1 the training cannot either",
            fix=f"`hf download {path}` where the training runs (HF_TOKEN for a gated one), or {key}=FOLDER",
        )
    elif facts["folder"] is None:
        yield error(
            "model.path",
            f"{key}: there is no folder {path}",
            why="where the training runs; transformers would take it for a name on the Hub: 'Repo id must be ...'",
            fix=f"{key}=FOLDER, as the cluster sees it (containers see your project as /workspace)",
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


def _architecture(facts: Facts, keys: Mapping[str, str]) -> Iterator[Finding]:
    said = facts["json"]
    names = said.get("architectures") or []
    name, kind = (names or ["?"])[0], said.get("model_type")
    if "remote_code" in facts:
        yield error(
            "model.remote-code",
            f"{facts['path']} needs code of its own: {', '.join(map(str, facts['remote_code'].values()))[:120]}",
            why=f"transformers {facts['transformers_version']} has no model_type '{kind}'; a check does not run it",
            fix=f"read that code, then {keys['trust_remote_code']}=True {keys['data_trust_remote_code']}=True;"
            " the check runs it then too",
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
            fix="correct that value in config.json, or copy the file again",
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
    yield from _rollout_engine(facts, name)


def _rollout_engine(facts: Facts, name: str) -> Iterator[Finding]:
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
            why=f"none of its {vllm['models']} architectures, and transformers' class cannot replace it",
            fix="a model among those of vLLM's list of supported models",
        )


def _tokenizer(facts: Facts, keys: Mapping[str, str]) -> Iterator[Finding]:
    found = facts["tokenizer"]
    if "remote_code" in facts and "failed" in found:
        return  # it needs the model's own code too
    if "failed" in found:
        yield from _no_tokenizer(facts, keys)
        return
    if not found["template"]:
        yield error(
            "model.chat-template",
            "the tokenizer has no chat template",
            why="verl renders every prompt with it: 'Cannot use chat template functions ...'",
            fix=f"the instruct variant of the model, or {keys['chat_template']}=TEMPLATE",
        )
    elif "template_failed" in found:
        yield error(
            "model.chat-template",
            "the chat template cannot render one message of a user",
            why=f"{found['template_failed']['type']}: {found['template_failed']['message'][:200]}",
            fix=f"fix chat_template.jinja, or set {keys['chat_template']}",
        )
    elif not found["says_it"]:
        yield error(
            "model.chat-template",
            "the chat template leaves out what the user says",
            why="a rendered message does not hold its own content: each prompt would be the same",
            fix=f"fix chat_template.jinja, or set {keys['chat_template']}",
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


def _no_tokenizer(facts: Facts, keys: Mapping[str, str]) -> Iterator[Finding]:
    failed = facts["tokenizer"]["failed"]
    other = f", or name another folder with {keys['tokenizer']}" if "tokenizer" in keys else ""
    yield error(
        "model.tokenizer",
        f"the tokenizer of {facts['path']} cannot be loaded",
        why=f"{failed['type']}: {failed['message'].replace(chr(10), ' ')[:250]}",
        fix=f"copy tokenizer.json and tokenizer_config.json of the model again{other}",
    )


def judge_shards(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Return what is wrong with the weights of a model."""
    found, path = facts["shards"], facts["path"]
    if "index_broken" in found:
        yield error(
            "model.shard",
            f"{path}/model.safetensors.index.json cannot be read",
            why=found["index_broken"],
            fix=COPY_AGAIN,
        )
        return
    if not found["shards"]:
        yield _no_weights(path, found["others"])
        return
    bad = [shard for shard in found["shards"] if "wrong" in shard]
    for shard in bad[:3]:
        yield _bad_shard(path, shard, len(bad))
    if found["lost_count"]:
        yield error(
            "model.shard",
            f"{found['lost_count']} tensors that the index promises are in no file",
            why=f"such as {', '.join(found['lost'])}",
            fix="files of two downloads are mixed: " + COPY_AGAIN.replace("that file", "the model"),
        )
    if not bad:
        yield from _against_config(facts, found)


def _no_weights(path: str, others: list[str]) -> Finding:
    if others:
        return warning(
            "model.weights",
            f"{path} has no .safetensors, but {', '.join(others)}",
            why="weights in pickle files are read whole by each rank, and run code when they are loaded",
            fix="save_pretrained(..., safe_serialization=True) once",
        )
    return error(
        "model.weights",
        f"{path} has no weights",
        why="neither .safetensors nor .bin files are there",
        fix="copy the whole model; a folder with config and tokenizer alone is half of it",
    )


def _bad_shard(path: str, shard: Mapping[str, Any], count: int) -> Finding:
    name, more = f"{path}/{shard['name']}", f" (one of {count} files)" if count > 1 else ""
    what, why = {
        "missing": (f"{name} is not there", "the index names it"),
        "pointer": (f"{name} is a pointer of git-lfs, not the file", "`git lfs pull` was not run"),
        "empty": (f"{name} is empty", f"it has {shard.get('bytes')} bytes"),
        "header": (f"{name} is not a safetensors file", shard.get("said", "")),
        "truncated": (
            f"{name} is cut off",
            f"its header promises {shard.get('expected')} bytes, it has {shard.get('bytes')}",
        ),
        "longer": (
            f"{name} is longer than its header says",
            f"{shard.get('bytes')} bytes, not {shard.get('expected')}",
        ),
    }[shard["wrong"]]
    fix = "git lfs pull" if shard["wrong"] == "pointer" else COPY_AGAIN
    return error("model.shard", what + more, why=why, fix=fix)


def _against_config(facts: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Finding]:
    sizes, shape, layers = facts.get("sizes", {}), found["embedding"], found["layers"]
    if "quantization_config" in facts["json"]:
        return  # packed weights have other shapes
    wanted = [sizes.get("vocab_size"), sizes.get("hidden_size")]
    if shape is not None and None not in wanted and list(shape) != wanted:
        yield error(
            "model.config-mismatch",
            f"vocab_size, hidden_size: config.json says {wanted[0]}, {wanted[1]}, the weights {shape[0]}, {shape[1]}",
            why="loading ends with 'size mismatch', or vLLM with an assertion in its weight loader",
            fix="the config.json that belongs to these weights",
        )
    expected = sizes.get("num_hidden_layers")
    if layers is not None and expected is not None and layers < expected:
        yield error(
            "model.config-mismatch",
            f"config.json says {expected} layers, the weights have {layers}",
            why="the others would start from random numbers, with one warning of transformers",
            fix="the config.json that belongs to these weights, or all of their files",
        )
