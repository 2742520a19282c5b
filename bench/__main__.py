"""`python -m bench`: measure pauses beside stock Ray and debugpy; write results.json and RESULTS.md."""

from __future__ import annotations

import argparse
import json

from bench import figures, look, many, measuring, misses, pause, start


def main() -> None:
    """Run all programs over one pair of heads."""
    options = measuring.parse(argparse.ArgumentParser(description=__doc__))
    before = measuring.machine()
    # First: thousands of tasks leave the machine busy.
    samples = measuring.run([start.measure, misses.measure], options.repetitions, needs_heads=False)
    samples |= measuring.run([pause.measure, look.measure, many.measure], options.repetitions)
    about = {**before, "load_after": measuring.machine()["load"], "repetitions": options.repetitions}
    measuring.save({"machine": about, "figures": figures.document(samples)})
    print(json.dumps(about) if options.json else figures.table(samples))


if __name__ == "__main__":
    main()
