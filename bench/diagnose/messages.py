"""Define the messages of `diagnose`: what is slow and the evidence for it, notes, and the conclusion."""

from __future__ import annotations

from bench.core.codes import OptionalPartsCode


def _ratio(fact: str) -> str:
    """Return a message template that shows a ratio with its interval.

    `fact`: the name of a fact. The fact is a mapping with the keys ratio, low, high and num_rows.
    """
    return (
        f"at {{{fact}[ratio]:.2f}} of the rate of its peers (95 % {{{fact}[low]:.2f}} to {{{fact}[high]:.2f}}, "
        f"{{{fact}[num_rows]:n measurement}})"
    )


_DIRECTIONS = (
    f"< sends {_ratio('sends')}><both? and>< receives {_ratio('receives')}>"
    "<!receives?, receives normally><!sends?, sends normally>"
)


class SlowPart(OptionalPartsCode):
    """What is slow.

    A message has the fact `sends` if the part is slow as a sender, and the fact `receives` if it is slow as a receiver.
    For a link, these facts are named `forward` and `backward`.
    """

    RACK = "slow-rack", f"rack {{rack}}{_DIRECTIONS} across racks"
    HOST = "slow-host", f"{{host}}{_DIRECTIONS}<inside? inside the host>"
    NIC = "slow-nic", f"{{nic}}{_DIRECTIONS}; other NICs of {{host}} are not slow"
    RANK = (
        "slow-rank",
        f"rank {{rank}} of {{host}}, unlike the other ranks there,{_DIRECTIONS}<inside? inside the host>",
    )
    HOST_OF_LOGS = (
        "bad-host-of-logs",
        "{num_bad} of {num_runs} runs with {host} are slow, failed or missing: {num_slow} of "
        "{num_partners:n partner} had slow runs with this host, and {num_lost} had failed or missing runs",
    )
    LINK = (
        "slow-link",
        f"<{{first}} to {{second}} runs {_ratio('forward')}><both? and ><{{second}} to {{first}} runs "
        f"{_ratio('backward')}><open_ends?; {{open_ends:list}} may be slow instead of the link, because no other "
        "partner was measured><!open_ends?; both ends are normal with other partners>",
    )


class DiagnosisNote(OptionalPartsCode):
    """Notes for the reader of a diagnosis."""

    CONTENTION = (
        "contention",
        (
            f"{{link}} runs {_ratio('loaded')} while other pairs run, but at its normal rate when it runs alone: "
            "the reason is contention, not a slow link"
        ),
    )
    HOSTS_NOT_TESTED = (
        "hosts-not-tested",
        "not every host was tested, because the first test is missing {num_missing:n round}: any host may be slow",
    )
    SUSPICIONS_OPEN = (
        "suspicions-open",
        "the run ended before it could check {num_suspects:n suspicion}: measure again, and allow more time",
    )


class Conclusion(OptionalPartsCode):
    """The conclusion of a diagnosis, in a single sentence."""

    SLOW = "slow", "slow: {num_parts} ({shown:list}<, and {num_more} more>)"
    NOTHING_SLOW = "nothing-slow", "nothing is slow: no host, NIC or link is below 0.9 of its peers' bandwidth"
    NO_PEERS = (
        "no-peers",
        "nothing can be compared, because only one pair of ranks was measured: measure three or more ranks",
    )
    SUSPICIONS_OPEN = "undecided-suspicions", "undecided: the run ended before all suspected parts were checked"
    HOSTS_NOT_TESTED = "undecided-hosts", "undecided: the run ended before every host was tested"


class FleetConclusion(OptionalPartsCode):
    """The conclusion about a folder of similar runs."""

    NAMED = (
        "hosts-named",
        "<AT FAULT: {at_fault:list}. ><SUSPECTED: {suspected:list}. ><is_one?This host explains><!is_one?These "
        "{num_named:n host} explain> {num_explained} of {num_bad} slow, failed or missing runs.",
    )
    PAIRS_ONLY = (
        "pairs-only",
        "NO HOST IS ACCUSED: {num_bad:n run} of {num_runs} <is_one?is><!is_one?are> slow, failed or missing, in "
        "{num_pairs:n pair} of hosts; no single host explains <is_one?this run><!is_one?these runs>.",
    )
    ALL_WELL = (
        "all-well",
        "<least_share?ALL ALIKE: no run failed, and every run reached at least {least_share:.0%} of the usual "
        "rate of similar runs.><!least_share?NO HOST IS NAMED: no run failed, but the rates of a group differ "
        "too widely to tell slow hosts from slow links.>",
    )


class FleetNote(OptionalPartsCode):
    """Notes for the reader of the page about a folder of similar runs."""

    CLUSTERS = (
        "clusters",
        "There are {num_clusters} clusters ({clusters:list}), and no job ran on hosts of more than one "
        "cluster. Each host is therefore compared only with hosts of its own cluster.",
    )
    WEIGHTS = (
        "weights",
        "Evidence: each slow job multiplies the odds that its host is at fault by {slow:.1f}. Each lost job (failed, "
        "missing or without figures) multiplies these odds by {lost:.1f}. A slow or lost job is stronger evidence if "
        "such jobs are rare on other hosts. Each pair of hosts is counted once.",
    )
    RATES_DIFFER = (
        "rates-differ",
        "{pattern} with {ranks_per_node:n rank} per node: rates differ by {spread:.0%} because of two network tiers, "
        "contention or noise, so only <limit?runs below {limit:rate} and >lost runs are evidence of a bad host.",
    )
    UNPLACED = (
        "runs-unplaced",
        "{num_runs:n run} with unknown hosts or too few similar runs <is_one?is><!is_one?are> not on this page: "
        "add --pages to see all.",
    )
    MEDIANS = "medians", 'Column "median is": the verdict on the median run of each group of similar runs. {decides}'
    NEXT = (
        "next-step",
        "For a page about each run, add --pages.<named? First measure the named hosts again, each with a "
        "partner that works normally.>",
    )
