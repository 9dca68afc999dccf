"""Describe the site on which a first contact runs.

The site fills placeholders `{...}` in commands with its own values. The site also says why a step cannot run.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.core.codes import Coded
from bench.first_contact.messages import StepSkip
from bench.first_contact.plan_file import ContactStep


@dataclass(frozen=True, slots=True)
class ContactSite:
    """The machine or cluster on which a first contact runs.

    `root`: the folder of the linkbench checkout.
    `folder`: the folder that holds everything of this first contact.
    `num_gpus`: the number of GPUs; None before they are counted.
    `tools`: the folder of nccl-tests and nvbandwidth.
    `cluster`: the name of a cluster.
    `config`: the bench.yaml that describes the cluster.
    """

    root: Path
    folder: Path
    cluster: str = "local"
    config: Path | None = None
    tools: Path | None = None
    num_gpus: int | None = None
    gpu: str = ""

    def command(self, step: ContactStep, limit_s: float) -> list[str]:
        """Return the words of a step's command.

        The placeholders `{torchrun}` and `{site}` may become several words or no word.
        """
        filled = {
            "python": sys.executable,
            "folder": str(self.folder / step.name),
            "results": str(self.folder / "results"),
            "plots": str(self.folder / "plots"),
            "gpus": str(self.num_gpus or 1),
            "cluster": self.cluster,
            "tools": str(self.tools or ""),
            "root": str(self.root),
            "seconds": str(max(1, int(0.85 * limit_s))),
        }
        words: list[str] = []
        for word in step.command:
            if word == "{torchrun}":
                words += _torchrun(self.num_gpus or 1)
            elif word == "{site}":
                words += ["--cluster", self.cluster, *(["--config", str(self.config)] if self.config else [])]
            else:
                for name, value in filled.items():
                    word = word.replace(f"{{{name}}}", value)
                words.append(word)
        return words

    def missing(self, step: ContactStep) -> Coded | None:
        """Return why a step cannot run here, or None."""
        for need in step.needs:
            kind, _, name = need.partition(":")
            if kind == "module" and importlib.util.find_spec(name) is None:
                return Coded.of(StepSkip.NO_MODULE, name=name)
            if kind == "program" and shutil.which(name) is None:
                return Coded.of(StepSkip.NO_PROGRAM, name=name)
            if kind == "file" and not (self.root / name).exists():
                return Coded.of(StepSkip.NO_FILE, name=name)
            if kind == "gpus" and (self.num_gpus or 0) < int(name):
                return Coded.of(StepSkip.TOO_FEW_GPUS, name=name, num_gpus=self.num_gpus or 0)
            if kind == "tools" and self.tools is None:
                return Coded.of(StepSkip.NO_TOOLS)
        return None


def _torchrun(num_ranks: int) -> Sequence[str]:
    # The address is used, because a sandbox may not resolve its own name.
    words = ("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node")
    return (sys.executable, *words, str(num_ranks))
