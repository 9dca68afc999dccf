"""The traits of a transport. They say what it is and what it needs, and are readable without the transport's library.

Each file of `transports/` declares one `TRAITS = Traits(...)` of literal values. `traits` reads this declaration from
the source without importing the file. The reason is that a login node may make a plan without these libraries, and that
`--help` must import no library. All other modules ask for traits and never name a transport (tests/test_shape.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from bench.core import plugins


@dataclass(frozen=True, slots=True)
class Traits:
    """The traits of one transport. The defaults describe an unknown transport, for example in another tool's log.

    Where it runs:

    `launcher`: the default launcher of its ranks.
    `requires`: the Python packages that it imports.
    `on_gpu`: whether each rank needs a GPU.
    `over_mpi`: whether its ranks are MPI processes.
    `modelled`: whether it simulates. If so, linkbench starts and measures nothing.
    `rendezvous`: whether ranks of several hosts meet at a port of the first host.
    `needs_shm`: whether it fails without /dev/shm.
    `start_s`: seconds until its ranks run, for the estimate of a plan.
    `auto_order`: its position in the list from which `--transport auto` chooses. GPU transports and other transports
        have separate lists. None means that `auto` never chooses it.

    What it does:

    `host_memory`: whether it moves host memory, so that a GPU's ports do not limit it.
    `separates`: whether it can run two patterns at once.
    `factors`: the options of only some transports that this transport obeys.
    `no_effect`: the options of only some transports that this transport accepts without effect.
    `rings`: whether its large collectives use rings.
    `calibrates`: whether its collectives show how close a GPU library comes to the rates of the links.

    Network:

    `nic_variables`: environment variables that set the network interface of a rank.
    `adapter_variable`: the variable for an adapter without an interface.
    `nic_list`: the form of a list in the first of `nic_variables`. It is "names", "prefixes" ('=' means names, '^'
        excludes) or "" (not checked).
    `only_interfaces`: whether it cannot use adapters.
    `host_name_variable`: an environment variable. If this variable is not set, the library finds the network by the
        host's own name.
    `network`: the only network that it uses.

    Library:

    `library_facts`: the facts (Transport.facts) that must be equal on all ranks.
    `required_facts`, `required_versions`: the facts and versions that a publishable header must have.
    `bare`: the transport that calls the same library without this transport's framework. The ratio of the two times is
        the cost of the framework.

    Tuning and pictures:

    `tuned`: environment variables, each with the values that `tune` tries by default.
    `look`: the index of its colour and marker (results/curves.py), which differs for each transport.
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

    For `auto` and for names without a file in `transports/` the result is the default traits.
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
    """Return the transports that obey an option that other transports ignore: `names_obeying("graph")`."""
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
    """Return the facts of all transports that must be equal on all ranks."""
    return frozenset(fact for name in plugins.names("transport") for fact in traits(name).library_facts)
