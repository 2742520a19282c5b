"""How a model's config shrinks: the same architecture, every size small. Pure values, no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

HIDDEN = 64
HEADS = 2
HEAD_DIM = 32
LAYERS = 2
EXPERTS = 4

# The size of each key when it is present and larger; other keys stay as they are. Names as transformers 5.9 has them.
_SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), HIDDEN),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff"), 2 * HIDDEN),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), HIDDEN),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "depth", "max_window_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads"), HEADS),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "n_group"), 2),
    "topk_group": 1,
    "first_k_dense_replace": 1,
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_nope_head_dim"), HEAD_DIM),
    **dict.fromkeys(("qk_rope_head_dim", "q_lora_rank", "kv_lora_rank"), HEAD_DIM // 2),
    "out_hidden_size": HIDDEN,  # a vision tower's output must fit the language model
}
_TOKEN_ID = ("_token_id", "_token_ids")


def shrink(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with every size made small, nested configs too.

    Heads keep their grouping: where several query heads share a key head, they still do.
    """
    small: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and key.endswith("_config"):
            small[key] = shrink(value)
        elif key in _SIZES and isinstance(value, int) and not isinstance(value, bool):
            small[key] = min(value, _SIZES[key])
        else:
            small[key] = value
    heads, key_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(key_heads, int):
        small["num_key_value_heads"] = small["num_attention_heads"] if key_heads == heads else 1
    layers = small.get("num_hidden_layers")
    if isinstance(layers, int):
        small.update({k: list(v)[:layers] for k, v in config.items() if k.endswith("layer_types") and v})
    _fit_rotary_sections(small)
    return small


def _fit_rotary_sections(small: dict[str, Any]) -> None:
    """Make the sections of a multi-axis rotary embedding add up to half of the shrunk head."""
    head_dim = small.get("head_dim") or HEAD_DIM
    for key in ("rope_scaling", "rope_parameters"):
        rope = small.get(key)
        if isinstance(rope, Mapping) and rope.get("mrope_section"):
            axes = len(rope["mrope_section"])
            rest = head_dim // 2 // axes
            small[key] = {**rope, "mrope_section": [head_dim // 2 - rest * (axes - 1), *[rest] * (axes - 1)]}


def rename_token_ids(config: Mapping[str, Any], new_id: Callable[[int], int | None]) -> dict[str, Any]:
    """Return the config with every token id replaced; an id without a successor becomes None.

    Args:
        config: a config; nested configs are followed.
        new_id: maps an id of the old vocabulary to one of the new.
    """
    renamed: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and key.endswith("_config"):
            renamed[key] = rename_token_ids(value, new_id)
        elif key.endswith(_TOKEN_ID) and isinstance(value, int):
            renamed[key] = new_id(value)
        elif key.endswith(_TOKEN_ID) and isinstance(value, list):
            renamed[key] = [kept for kept in map(new_id, value) if kept is not None] or None
        else:
            renamed[key] = value
    return renamed
