"""Find out on which machine another program wrote a log.

The user or the log names the machine, or the GPU models in the log identify the machine.

Several instance types can have the GPU that the log names. Bounds then use only the GPU's own ports and the links that
all these types have in common (`likely`). All other links are reported as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.core.links import NodeLinks
from bench.core.units import format_rate
from bench.hardware.catalogue import Instance, gpu_links, gpu_printed, instance, instances, node_network

_PROVIDER_OF_HOST = (("aws", re.compile(r"ip-\d+-\d+-\d+-\d+")), ("gcp", re.compile(r"gke-|gk3-")))
# Names of platforms, as aws-ofi-nccl prints them.
_PLATFORM = re.compile(r"^(p\d\w*(?:-b\d+)?)(?:[.-](\w+))?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LogMachine:
    """What is known about the machine on which a log was written.

    `links`: the links of a node that are certain; None if no links are certain.
    `likely`: the links that are certain, plus the NICs if they are the same in all `candidates`. The bounds that such
        NICs set are only reference bounds.
    `how`: a text that says how the machine was identified.
    `unknown_nics`: a text that says what NICs the candidates have, or "" if the NICs are known.
    `unknown`: texts about other parts of the machine that are unknown.
    """

    instance: str | None
    gpu: str | None
    links: NodeLinks | None
    how: str
    likely: NodeLinks | None = None
    candidates: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    unknown_nics: str = ""

    @property
    def all_unknown(self) -> tuple[str, ...]:
        """Texts about all unknown parts of the machine. The NICs come last."""
        return (*self.unknown, self.unknown_nics) if self.unknown_nics else self.unknown


def machine_of(
    named: str | Instance | None,
    gpus: Sequence[str] = (),
    hosts: Sequence[str] = (),
    ranks_per_node: int | None = None,
    platform: str | None = None,
) -> LogMachine:
    """Return the machine of a run. Raises UsageError for an unknown instance type.

    `named`: the instance type that the user named, or a machine that the site defines.
    `platform`: the platform that the log names, such as `P4d` or `p5.48xlarge`.
    `gpus`: the names of the GPUs as drivers print them.
    """
    if named is not None:
        found = instance(named) if isinstance(named, str) else named
        name = found.name
        odd = {gpu_printed(each) for each in gpus} - {None, found.gpu}
        differs = f", whose GPU is {found.gpu}, while the log names {', '.join(map(str, sorted(odd, key=str)))}"
        return LogMachine(name, found.gpu, found.links, f"{name}, as named{differs if odd else ''}")
    if (found_name := _instance_of_platform(platform)) is not None:
        found = instance(found_name)
        return LogMachine(found_name, found.gpu, found.links, f"{found_name}: the log names the platform {platform}")
    if not gpus:
        return LogMachine(None, None, None, "unknown: the log names no GPU", unknown=("GPUs, links and NICs",))
    known = {gpu_printed(each) for each in gpus}
    if None in known or len(known) > 1:
        return LogMachine(None, None, None, f"unknown: {', '.join(gpus)}", unknown=("links and NICs",))
    return _proposed(str(known.pop()), hosts, ranks_per_node)


def _proposed(gpu: str, hosts: Sequence[str], ranks_per_node: int | None) -> LogMachine:
    """Return the links of the GPU itself, and the instance types that have this GPU."""
    links = gpu_links(gpu, ranks_per_node or 8)
    fitting = [each for name in instances() if (each := instance(name)).gpu == gpu and each.gpus >= links.gpus]
    providers = {provider for provider, shape in _PROVIDER_OF_HOST for host in hosts if shape.match(host)}
    fitting = [each for each in fitting if each.provider in providers] or ([] if providers else fitting)
    names = tuple(each.name for each in fitting)
    if not fitting:
        return LogMachine(
            None, gpu, links, f"{gpu}; unknown instance type", unknown=("PCIe as wired",), unknown_nics="NICs"
        )
    how = f"{gpu}; it may be {' or '.join(names)}, or another with this GPU (name it: --instance)"
    known = {name: rate for name in names if (rate := node_network(name)) is not None}
    if len(set(known.values())) != 1 or (len(known) < 2 and not providers):
        rates = ", ".join(f"{name} {format_rate(rate)}" for name, rate in known.items())
        return LogMachine(None, gpu, links, how, None, names, unknown_nics=f"its NICs ({rates} per node)")
    fitting = [each for each in fitting if each.name in known]
    first, node_rate = fitting[0].links, known[fitting[0].name]
    fewest = min(each.links.num_nics or 1 for each in fitting)
    likely = replace(
        links,
        gpus=max(links.gpus, min(each.gpus for each in fitting)),
        nic_bytes_per_s=node_rate / fewest,
        num_nics=fewest,
        network_reduces=any(each.links.network_reduces for each in fitting),
        nvlink_nodes=max(each.links.nvlink_nodes for each in fitting),
        sources={**links.sources, **{link: first.sources[link] for link in ("network", "nic")}},
        verified={**links.verified, **{link: first.verified[link] for link in ("network", "nic")}},
    )
    nics = f"its NICs ({format_rate(node_rate)} per node if it is one of these)"
    return LogMachine(None, gpu, links, how, likely, names, unknown_nics=nics)


def _instance_of_platform(platform: str | None) -> str | None:
    """Return the largest instance type in the family of a platform such as `P4d` or `p5.48xlarge`; None if unknown."""
    found = _PLATFORM.match(platform or "")
    if not found:
        return None
    family = [name for name in instances() if name.split(".")[0] == found[1].lower()]
    return max(family, key=lambda name: instance(name).gpus, default=None)
