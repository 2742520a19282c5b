"""Stage `model`: config, tokenizer, chat template, weights, support of the architecture, and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raydebug.check import model_fit
from raydebug.check.config import not_run, spelled, without_rules
from raydebug.check.probes import Facts
from raydebug.check.target import Target
from raydebug.findings import Finding, finding

BUDGET_S = 30.0


def judge(target: Target, facts: Facts) -> list[Finding]:
    """Return the findings about a command's model. Pure."""
    keys = target.config(facts["config"]).keys
    found = list(not_run(facts))
    has_rules = target.rules is not None
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
        found += judge_processor(facts, keys)
    found += judge_shards(facts)
    if "sizes" in facts:
        found += model_fit.judge(target, facts, facts["variables"])
    return found


def _nothing_there(facts: Facts, key: str) -> Iterator[Finding]:
    if facts.get("unnamed"):  # where the config was not read, its model is not known
        yield finding("model.path.empty", key=key) if facts["empty"] else finding("check.not-run.model", key=key)
        return
    path = facts["path"]
    if facts.get("remote"):
        yield finding("model.path.remote", path=path, key=key)
    elif facts.get("is_file"):
        yield finding("model.path.file", key=key, path=path, overrides={key: path.rpartition("/")[0] or "."})
    elif facts["folder"] is None and facts.get("is_hub"):
        yield finding("model.not-cached", path=path, key=key)
    elif facts["folder"] is None:
        yield finding("model.path.absent", key=key, path=path)
    elif "config_broken" in facts:
        yield finding("model.config.broken", path=path, config_broken=facts["config_broken"])
    else:
        files = facts["files"]
        is_checkpoint = any(name.startswith(("model_world_size", "extra_state", "fsdp_config")) for name in files)
        yield finding("model.config.checkpoint" if is_checkpoint else "model.config.none", path=path, files=files)


def _architecture(facts: Facts, keys: Mapping[str, str]) -> Iterator[Finding]:
    config, refusal, vllm = facts["json"], facts.get("config_refused"), facts["vllm"]
    names, kind = config.get("architectures") or [], config.get("model_type")
    if "remote_code" in facts:
        yield finding("model.remote-code", facts=facts, files=list(facts["remote_code"].values()), kind=kind, keys=keys)
        return
    if len(names) != 1:
        yield finding("model.config.classes", count=len(names))
        return
    name = names[0]
    if refusal is not None and not facts["type_known"]:
        reason = refusal["message"].partition("\n")[0]
        yield finding("model.architecture.type", facts=facts, kind=kind, name=name, reason=reason)
    elif refusal is not None:
        yield finding("model.config.refused", type=refusal["type"], reason=refusal["message"].replace("\n", " "))
    elif not facts["class_known"] and not config.get("auto_map"):
        yield finding("model.architecture.class", facts=facts, name=name, kind=kind)
    elif not vllm or vllm["known"]:
        return
    elif vllm["until"]:
        yield finding("model.architecture.dropped", name=name, vllm=vllm)
    elif facts.get("vllm_may_wrap"):
        yield finding("model.architecture.wrapped", name=name)
    else:
        yield finding("model.architecture.none", name=name, vllm=vllm)


def _tokenizer(facts: Facts, keys: Mapping[str, str]) -> Iterator[Finding]:
    found = facts["tokenizer"]
    if "remote_code" in facts and "failed" in found:
        return  # it needs the model's own code too
    if "failed" in found:
        yield from _no_tokenizer(facts, keys)
        return
    if not found["template"]:
        yield finding("model.chat-template.none", keys=keys)
    elif "template_failed" in found:
        yield finding("model.chat-template.broken", failed=found["template_failed"], keys=keys)
    elif not found["says_it"]:
        yield finding("model.chat-template.blind", keys=keys)
    if found["eos"] is None:
        yield finding("model.tokenizer.no-end")
    width = facts.get("sizes", {}).get("vocab_size")
    if width is not None and found["largest_id"] >= width:
        yield finding("model.vocabulary", largest_id=found["largest_id"], width=width)


def _no_tokenizer(facts: Facts, keys: Mapping[str, str]) -> Iterator[Finding]:
    failed = facts["tokenizer"]["failed"]
    other = f", or name another folder with {keys['tokenizer']}" if "tokenizer" in keys else ""
    reason = failed["message"].replace("\n", " ")
    yield finding("model.tokenizer.broken", path=facts["path"], failed=failed, reason=reason, other=other)


def judge_processor(facts: Mapping[str, Any], keys: Mapping[str, str]) -> Iterator[Finding]:
    """Return the findings about the processor of a model with a vision tower. Pure."""
    found, path = facts["processor"], facts["path"]
    if found.get("no_torchvision"):
        if fitting := found.get("fitting"):
            yield finding("model.torchvision.known", fitting=fitting)
        else:
            yield finding("model.torchvision.unknown")
    elif "failed" in found:
        failed = found["failed"]
        reason = failed["message"].partition("\n")[0]
        yield finding("model.processor.broken", path=path, failed=failed, reason=reason, files=found["files"])
    elif not found.get("template") and "skipped" not in found:
        yield finding("model.processor.template")
    if found.get("loses_normalization"):
        yield finding("model.load-format", keys=keys, overrides={keys["load_format"]: "safetensors"})
    if found.get("breaks_equal_lengths"):
        case, repair = "one" if found["sequences"] == 1 else "some", "position-ids-of-equal-lengths"
        yield finding(f"model.equal-lengths.{case}", verl=found["verl"], variables={"RAYDEBUG_PATCHES": repair})


def judge_shards(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Return what is wrong with the weights of a model."""
    found, path = facts["shards"], facts["path"]
    if "index_broken" in found:
        yield finding("model.shard.index", path=path, index_broken=found["index_broken"])
        return
    if not found["shards"]:
        if others := found["others"]:
            yield finding("model.weights.pickled", path=path, others=others)
        else:
            yield finding("model.weights.none", path=path)
        return
    bad = [shard for shard in found["shards"] if "wrong" in shard]
    for shard in bad[:3]:
        more = f" (one of {len(bad)} files)" if len(bad) > 1 else ""
        yield finding(f"model.shard.{shard['wrong']}", name=f"{path}/{shard['name']}", more=more, shard=shard)
    if found["lost_count"]:
        yield finding("model.shard.lost", shards=found)
    if not bad:
        yield from _against_config(facts, found)


def _against_config(facts: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Finding]:
    sizes, shape, layers = facts.get("sizes", {}), found["embedding"], found["layers"]
    if "quantization_config" in facts["json"]:
        return  # packed weights have other shapes
    wanted = [sizes.get("vocab_size"), sizes.get("hidden_size")]
    if shape is not None and None not in wanted and list(shape) != wanted:
        yield finding("model.config-mismatch.embedding", wanted=wanted, shape=shape)
    expected = sizes.get("num_hidden_layers")
    if layers is not None and expected is not None and layers < expected:
        yield finding("model.config-mismatch.layers", expected=expected, layers=layers)
