"""Find the cluster for a resumed run in the current bench.yaml, not in the stored plan.

A plan contains shell lines and programs (`setup`, `agent`, `python`, `mpirun`, `env`). The user who continues a run
trusts bench.yaml, but may not know the contents of a results folder.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from bench.config import clusters
from bench.config.clusters import Cluster
from bench.controller.jobs import stored_cluster
from bench.controller.messages import ControllerError
from bench.core.errors import RefusedError, UsageError
from bench.core.secret_values import masked_plain, masked_variables, secrets_of


def cluster_today(planned: Mapping[str, Any], config: Path) -> Cluster:
    """Return the cluster of a plan as the file `config` defines it now.

    Raises RefusedError if the cluster is missing or has changed, because a run must not mix rows of two different
    sites.
    """
    name = str(planned.get("name"))
    try:
        today = clusters.cluster(config, name)
    except UsageError as error:
        raise RefusedError.of(ControllerError.CLUSTER_GONE, cluster=name, why=str(error)) from None
    now = json.loads(json.dumps(stored_cluster(today)))
    defaults = json.loads(json.dumps(asdict(Cluster(name))))
    env = masked_variables(planned.get("env") or {})  # plans of older versions hold all values
    planned = {**masked_plain(planned, secrets_of(today.env)), "env": env}
    differs = [key.name for key in fields(Cluster) if now[key.name] != planned.get(key.name, defaults[key.name])]
    if differs:
        raise RefusedError.of(ControllerError.CLUSTER_CHANGED, cluster=name, config=str(config), keys=differs)
    return today


def command(folder: Path, config: Path | None) -> str:
    """Return the command that continues a run, with the bench.yaml that the user named."""
    named = [] if config is None else ["--config", str(config)]
    return shlex.join(["python", "-m", "bench", "run", "--resume", str(folder), *named])
