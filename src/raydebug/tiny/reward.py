"""The reward of the tiny dataset: the share of digits in what the model wrote.

Dense and deterministic: a random model already earns some of it, so a short training shows that it learns.
"""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_options):  # type: ignore[no-untyped-def]
    """Score one response; verl calls this once for each.

    Source: verl 0.9.1 experimental/reward_loop/reward_manager/naive.py passes these names.
    """
    text = solution_str or ""
    digits = sum(character.isdigit() for character in text)
    return {"score": digits / max(1, len(text)), "characters": float(len(text))}
