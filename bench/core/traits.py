"""The traits of a transport. The traits say what the transport is and what it needs.

A reader of the traits does not need the transport's library. Each file of `transports/` declares one `TRAITS =
Traits(...)` of literal values. `traits` reads the value of TRAITS from the source without importing the file. The
source is read for two reasons: a login node may lack the libraries when it makes a plan, and `--help` must not import
any library. All other modules ask for traits and never name a transport (tests/test_shape.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from bench.core import plugins


@dataclass(frozen=True, slots=True)
class Traits:
    """The traits of one transport. The defaults apply to an unknown transport, for example in another tool's log.

    Where it runs:

    `launcher`: the default launcher of its ranks.
    `requires`: the Python packages that it imports.
    `on_gpu`: whether each rank needs a GPU.
    `over_mpi`: whether its ranks are MPI processes.
    `modelled`: whether it simulates. If the transport simulates, linkbench starts no ranks and measures nothing.
    `rendezvous`: whether ranks of several hosts meet at a port of the first host.
    `needs_shm`: whether the transport fails if there is no /dev/shm.
    `start_s`: seconds until its ranks run, for the estimate of a plan.
    `auto_order`: its position in the list from which `--transport auto` chooses. GPU transports and other transports
        have separate lists. A transport that `auto` never chooses has None.

    What it does:

    `host_memory`: whether it moves host memory. If the transport moves host memory, the ports of a GPU do not limit it.
    `separates`: whether it can run two patterns at once.
    `factors`: options that not every transport obeys. This transport obeys the listed options.
    `no_effect`: options that not every transport obeys. This transport accepts the listed options, but they have no
        effect.
    `rings`: whether the transport's collectives use ring algorithms for large payloads.
    `calibrates`: whether its measured collectives may serve as evidence for predictions. Such collectives show how
        close a GPU library comes to the rates of the links.

    Network:

    `nic_variables`: environment variables that set the network interface of a rank.
    `adapter_variable`: the variable for an adapter without an interface.
    `nic_list`: the form of a list of devices in the first of `nic_variables`. The form "names" is a list of full names.
        The form "prefixes" is a list of prefixes, in which '=' at the start means full names and '^' excludes names. If
        `nic_list` is "", the list is not checked.
    `only_interfaces`: whether it needs a network interface and cannot use an adapter without one.
    `host_name_variable`: an environment variable. If the variable is not set, the library uses the network to which the
        host's own name resolves.
    `network`: the name of the network type, if the transport can use only one type.

    Library:

    `library_facts`: the names of facts in Transport.facts that must have the same value on all ranks.
    `required_facts`, `required_versions`: the facts and versions that a publishable header must have.
    `bare`: the transport that calls the same library without this transport's framework. The ratio of the two times is
        the cost of the framework.

    Tuning and pictures:

    `tuned`: environment variables, each with the values that `tune` tries by default.
    `look`: an index for the colour and the marker of the transport's curves (results/curves.py). Each transport has its
        own index.
    """

    launcher: str = "torchrun"
    requires: tuple[str, ...] = ()
    on_gpu: bool = False
    over_mpi: bool = False
    modelled: bool = False
    rendezvous: bool = False
    needs_shm: bool = False
    start_s: float = 8.5
    auto_order: int | None = None
    host_memory: bool = False
    separates: bool = False
    factors: tuple[str, ...] = ()
    no_effect: tuple[str, ...] = ()
    rings: bool = False
    calibrates: bool = False
    nic_variables: tuple[str, ...] = ()
    adapter_variable: str = ""
    nic_list: str = ""
    only_interfaces: bool = False
    host_name_variable: str = ""
    network: str = ""
    library_facts: tuple[str, ...] = ()
    required_facts: tuple[str, ...] = ()
    required_versions: tuple[str, ...] = ()
    tuned: tuple[tuple[str, tuple[str, ...]], ...] = ()
    look: int = 6
    bare: str = ""


_UNKNOWN = Traits()


@cache
def traits(name: str) -> Traits:
    """Return the traits of a transport.

    The result is the default traits if the name is `auto`, or if `transports/` has no file of this name.
    """
    if name not in plugins.names("transport"):
        return _UNKNOWN
    declared = plugins.declared("transport", name, "TRAITS")
    if declared is None:
        raise AttributeError(f"bench/transports/{name}.py declares no TRAITS (docs/extending.md)")
    return Traits(**declared)


def names_with(trait: str) -> tuple[str, ...]:
    """Return the transports that have a trait, sorted by name: `names_with("over_mpi")` -> ("mpi", "mpi_cuda")."""
    return tuple(name for name in plugins.names("transport") if getattr(traits(name), trait))


def names_obeying(factor: str) -> tuple[str, ...]:
    """Return the transports that obey an option. All other transports ignore this option.

    For example, `names_obeying("graph")` returns the transports that obey --graph.
    """
    return tuple(name for name in plugins.names("transport") if factor in traits(name).factors)


def auto_choices(*, on_gpu: bool) -> tuple[str, ...]:
    """Return the transports from which `--transport auto` chooses, with the preferred transport first."""
    ordered = []
    for name in plugins.names("transport"):
        found = traits(name)
        if found.auto_order is not None and found.on_gpu == on_gpu:
            ordered.append((found.auto_order, name))
    return tuple(name for _, name in sorted(ordered))


def library_facts() -> frozenset[str]:
    """Return the names of the facts that must be equal on all ranks, for any transport."""
    return frozenset(fact for name in plugins.names("transport") for fact in traits(name).library_facts)
