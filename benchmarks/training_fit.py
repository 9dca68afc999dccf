"""Fit the effects of published training runs, and write them to bench/hardware/training_fit.yaml.

Run it after every change of hardware/training.yaml, of the GPUs' rates, or of the evidence on collectives:

    python -m benchmarks.training_fit
"""

from __future__ import annotations

from pathlib import Path

from bench.predict import from_args
from bench.predict.effects import FittedEffects, fit
from bench.predict.training_observations import observations

FILE = Path(__file__).parent.parent / "bench" / "hardware" / "training_fit.yaml"
_HEAD = """\
# Effects fitted to hardware/training.yaml by benchmarks/training_fit.py; do not edit. mean: of the logarithm of a time.
#   factor  this effect's row of the lower Cholesky factor of the covariance of all effects, in the order of this file
effects:
"""


def text(found: FittedEffects) -> str:
    """Return the file."""
    lines = []
    for k, (name, mean, row) in enumerate(zip(found.names, found.means, found.factor, strict=True)):
        numbers = ", ".join(f"{value:.4f}" for value in row[: k + 1])
        lines.append(f"  {name}: {{mean: {mean:.4f}, factor: [{numbers}]}}\n")
    return _HEAD + "".join(lines)


if __name__ == "__main__":
    FILE.write_text(text(fit(observations(from_args.evidence([])))))
