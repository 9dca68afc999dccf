"""Define the messages of `explain`, except those of its reasons, which are in `reasons/`."""

from __future__ import annotations

from bench.core.codes import Code, OptionalPartsCode


class ResultVerdict(Code):
    """The verdicts on a result. The page shows the text."""

    NORMAL = "normal", "normal"
    ONLY_RESULT = (
        "like-the-only-result",
        "like the only known result",
    )  # the only known result is itself far below its bound
    LOW = "low", "low"
    FAR_TOO_LOW = "far-too-low", "far too low"
    ABOVE = "above", "above what is possible"
    # Nothing that is known contradicts the named machine.
    NORMAL_IF = "normal-if", "normal, if the named machine is the right one"
    FAILED = "failed", "failed"  # no figure is valid, and the log shows a failure
    CANNOT_BE_JUDGED = "cannot-be-judged", "cannot be judged"


_COMPARISON = (
    "{rate:rate} at {size_bytes:bytes} is {ratio:.0%} of the <only?only><!only?best> known result on comparable links "
    "({reference_rate:rate}< at {reference_bytes:bytes}><interpolated?, interpolated>, {reference_machine}"
    "<, {reference_note}>)<, and {bound_share:.0%} of the bound ({bound})>"
    "<. The rate is above the {floor_passed:rate} that Azure's health checks require>"
    "<. The rate is below the {floor_missed:rate} that Azure's health checks require>"
    "<. Each node sends {nic_rate:rate} through its NICs, {nic_share:.0%} of their {network_rate:rate}>"
    "<nics_assumed?, assuming the NICs that other machines with this GPU have>"
)
_BOUND = "{rate:rate} is {share:.0%} of the {bound_rate:rate} bound ({bound})"
_NOT_LARGE_ENOUGH = (
    "<rising?the sizes are too small: bandwidth still rises at {largest_bytes:bytes}, the largest size>"
    "<!rising?there are too few sizes (up to {largest_bytes:bytes}) to see whether bandwidth still rises>"
)
_WARNING = (
    "< WARNING: this is {times_best:.1f} times the best known result; check the machine, the number of ranks and the "
    "sizes.>"
)


class AssessmentCode(OptionalPartsCode):
    """The reasons why a result has its verdict, or cannot be judged."""

    # Why a run cannot be judged.
    WRONG_DATA = "wrong-data", "Some received data were wrong, so all times and bandwidths are invalid."
    NUM_RANKS_UNKNOWN = "num-ranks-unknown", "The log does not state the number of ranks: give it with --num-ranks."
    NUM_NODES_UNKNOWN = "num-nodes-unknown", "The log does not state the number of nodes: give it with --num-nodes."
    RANKS_DO_NOT_DIVIDE = (
        "ranks-do-not-divide",
        "{num_ranks:n rank} cannot be split evenly over {num_nodes:n node}: give another --num-nodes.",
    )
    UNEVEN_NODES = (
        "uneven-nodes",
        "{num_ranks} ranks cannot be split evenly over {num_nodes:n node}: the node with the fewest ranks limits the "
        "rate, and it is unknown how many NICs this node used. Measure with the same number of ranks on every node.",
    )
    TOO_MANY_RANKS = (
        "too-many-ranks-per-node",
        "{num_ranks} ranks on {num_nodes:n node} are {per_node} per node, but {instance} has {num_gpus} GPUs: give "
        "another --num-nodes or --instance.",
    )
    ONE_RANK = "one-rank", "With one rank, no data cross a link."
    NO_BANDWIDTH = "no-bandwidth", "No row has a bandwidth."
    MODELLED = "modelled", "These rows are modelled; nothing was measured."
    SHARED_GPU = (
        "shared-gpu",
        "Ranks share a GPU ({log_text}, line {line}), so their data may never cross a link.",
    )
    OTHER_MACHINE = (
        "other-machine",
        "{instance} has {gpu}, but the log names {other_gpus:list}, so the log is from another machine. Omit "
        "--instance, or name the right machine.",
    )
    MACHINE_UNKNOWN = (
        "machine-unknown",
        "The log does not state the machine: name it with --instance.< Similar rates are published for "
        "{candidates:list}, but these machines are only guesses.>",
    )
    OWN_MACHINE_UNKNOWN = (
        "own-machine-unknown",
        "<{rate:rate} is {share:percent} of the {bound_rate:rate} bound ({bound}). >The links of this machine are "
        "unknown, and no result of such a machine is published. Set --instance or `links:` for this run, or compare "
        "the run with an earlier run on the same machine (linkbench compare).",
    )
    NICS_UNKNOWN = (
        "nics-unknown",
        "{rate:rate} cannot be judged, because the bandwidth of each node's NICs is unknown<; published rates: "
        "{others:list}>. Name the machine with --instance.",
    )
    NIC_UNKNOWN = (
        "nic-unknown",
        "{rate:rate} is not close to the line rate of any known NIC: name the machine with --instance.",
    )
    SIZES_TOO_SMALL_FOR_NIC = (
        "sizes-too-small-for-nic",
        "{rate:rate} does not show the NIC's rate: even the largest messages ({largest_bytes:bytes}) are too small "
        "to fill a NIC.",
    )
    TOOL_WITHOUT_BOUND = "tool-without-bound", "{figure}: no bound is known, because {missing}."
    TOOL_TESTS_FAILED = "tool-tests-failed", "The tool reports that {num_tests:n test} failed: {tests:list 6}."
    NO_BOUND = (
        "no-bound",
        "Neither a bound nor a published result is known for this pattern with this number of ranks and nodes.",
    )
    SIZES_TOO_SMALL = "sizes-too-small", f"{_COMPARISON}. However, {_NOT_LARGE_ENOUGH}.{_WARNING}"
    SIZES_TOO_SMALL_FOR_BOUND = (
        "sizes-too-small-for-bound",
        f"{_BOUND}, but {_NOT_LARGE_ENOUGH}, and no published result of this size is known.",
    )
    ONLY_ITSELF = (
        "only-itself",
        f"{_BOUND}. The only published result for such machines is this measurement itself, so the normal rate is "
        "unknown.",
    )
    HOST_MEMORY_TOOL = (
        "host-memory-tool",
        f"{_BOUND}, but this tool times single operations from host memory, and no result of this tool is published.",
    )
    MESSAGE_PASSING_TOOL = (
        "message-passing-tool",
        f"{_BOUND}. <on_gpus?The buffers are on GPUs, and the MPI library may copy them through host memory>"
        "<!on_gpus?One buffer may be on a host and the other on a GPU>. No result of this tool is published.",
    )
    MESH_LINKS_UNKNOWN = (
        "mesh-links-unknown",
        "{rate:rate} may be normal: a pair of {gpu} in such a machine has two links, one link or none, and the log "
        "does not say which GPUs took part. Measure all GPUs of the node, or look at nvidia-smi topo -m.",
    )
    MESH_LACKS_LINKS = (
        "mesh-lacks-links",
        "{rate:rate} may be normal: some pairs of {gpu} in such a machine have no direct link, and {pattern} also "
        "sends data between such pairs. Measure allreduce, which uses only existing links.",
    )
    BRIDGES_UNKNOWN = (
        "bridges-unknown",
        f"{_BOUND}, but it is unknown how NVLink bridges join the cards: a bridge over {{most_bridged}} cards gives "
        "each pair 1/{num_peers} of a port.",
    )

    # How a verdict was reached.
    ABOVE_BOUND = (
        "above-bound",
        "<{direction}: >{rate:rate}< at {size_bytes:bytes}> is {excess:.0%} above the hard bound of {bound_rate:rate} "
        "({bound}): {bound_why}. The figure or the number of ranks is wrong, or this is a different machine.",
    )
    COMPARED = (
        "compared-with-results",
        f"{_COMPARISON}<. The only known result reaches {{only_share:.0%}} of the bound, so the normal rate is unknown>"
        f"<. The best known result itself reaches {{best_share:.0%}} of the bound>.{_WARNING}",
    )
    NEAR_BEST_OF_ANYONE = (
        "near-best-of-anyone",
        "{rate:rate} is {ratio:.0%} of the <only?only><!only?best> known result on such machines "
        "({reference_rate:rate}, {machine})<!only?, so it is normal with any NICs>.",
    )
    BELOW_SLOWEST = (
        "below-slowest",
        "{rate:rate} is too low even for the slowest known machine with this GPU: only {ratio:.0%} of "
        "{slowest_rate:rate} ({slowest}).",
    )
    NORMAL_WITH_NICS = (
        "normal-with-nics",
        "{rate:rate} is normal if each GPU in use has one NIC of {nics:list}. To decide, name the NICs of a node: "
        "--nics 8x400G.",
    )
    NORMAL_WITH_SLOW_NIC = (
        "normal-with-slow-nic",
        "{rate:rate} is {share:.0%} of the line rate of a NIC of {nic_gbit_per_s:.0f} Gb/s. This rate is normal for "
        "such a NIC, but low for a faster NIC. To decide, name the NIC: --nics 1x{nic_gbit_per_s:.0f}G.",
    )
    NORMAL_ON_MACHINES = (
        "normal-on-machines",
        "{rate:rate} would be normal on {machines:list}<, and low on {low_machines:list}>. Each percentage is this "
        "rate divided by the published rate of that machine, or by the rate that its links allow. To decide, name "
        "the machine: --instance TYPE.",
    )
    COMPARED_WITH_BOUND = (
        "compared-with-bound",
        f"{_BOUND}; no published result is known for this <same_shape?size><!same_shape?pattern, number of ranks and "
        "number of nodes>.",
    )
    CARDS_THROUGH_HOST = "cards-through-host", f"{_BOUND}, as usual for cards that exchange data through host memory."
    COMPARED_WITH_NIC = (
        "compared-with-nic",
        "If the NIC has {nic_gbit_per_s:.0f} Gb/s, {rate:rate} is {share:.0%} of its line rate ({nic_rate:rate}).",
    )

    # A topology without a run.
    TOPOLOGY_WELL = (
        "topology-well",
        "<num_nvlinks?Each GPU has {num_nvlinks:n active NVLink}. >No GPU has fewer or slower NVLinks than the others. "
        "No bandwidth was measured.",
    )
    TOPOLOGY_ODD = "topology-odd", "{problems:list}."
    TOPOLOGY_UNEVEN = (
        "topology-uneven",
        "{problems:list}. That is normal for a machine that is built this way. No bandwidth was measured.",
    )
    TOPOLOGY_WITHOUT_LINKS = (
        "topology-without-links",
        "The text shows no NVLink between GPUs, and no link that is slower than other links. This is normal if PCIe "
        "joins the GPUs of this machine. No bandwidth was measured.",
    )
    TOPOLOGY_LACKS_NVLINK = (
        "topology-lacks-nvlink",
        "NVLinks join the GPUs of {instance}, but the text shows none: Fabric Manager is not running, or the "
        "container or virtual machine lacks the devices.",
    )
    TOPOLOGY_NEEDS_NO_NVLINK = (
        "topology-needs-no-nvlink",
        "{instance} has no NVLink, and no path between GPUs is worse than the others. No bandwidth was measured.",
    )

    # Why a result of copies has its verdict.
    TOOL_FAILED = "tool-failed", "The tool failed, so the figures that it printed before the failure may be wrong."
    GPU_COUNTS_DIFFER = (
        "gpu-counts-differ",
        "The log lists {num_listed:n GPU}, but its tables have {num_measured}: the log contradicts itself, so its "
        "figures are ignored.",
    )
    ONLY_KERNEL_COPIES = (
        "only-kernel-copies",
        "Only copies by kernels were measured ({tests:list}): run the tests of the copy engine (ce) as well.",
    )
    NO_ONE_WAY_COPY = "no-one-way-copy", "No one-way bandwidth was measured."
    NORMAL_WITH_PCIE = (
        "normal-with-pcie",
        "{rate:rate} between a GPU and its host is normal if the link is {links:list}. To decide, name the machine: "
        "--instance TYPE.",
    )
    NORMAL_WITH_SLOWER_PCIE = (
        "normal-with-slower-pcie",
        "{direction}: {rate:rate} is normal if the machine connects its GPUs at {links:list}, but too low for PCIe "
        "{generation}.0 x{lanes}, which the {gpu} supports. To decide, name the machine: --instance TYPE.",
    )
    LINKS_UNKNOWN = "links-unknown", "The machine and its links are unknown: name the machine with --instance."
    SHARED_MEMORY = (
        "shared-memory",
        "On a {gpu}, the host and the GPU share one memory, so no link bounds copies between them.",
    )
    GPU_LINKS_UNKNOWN = (
        "gpu-links-unknown",
        "The GPU is known ({gpu}), but not how the machine connects it: name the machine with --instance.",
    )
    COPY_THROUGH_HOST = (
        "copy-through-host",
        "{rate:rate} is {share:.0%} of {link}. Copies through host memory usually reach a third to a half of one "
        "link's rate, because they cross two links, partly one after the other.",
    )
    COPY_COMPARED_WITH_LINK = (
        "copy-compared-with-link",
        "{direction}: {rate:rate} (at {end}) is {bound_share:.0%} of the {bound_rate:rate} bound ({bound}); copies "
        "usually reach {usual} of the bound.",
    )
    COPY_COMPARED = (
        "copy-compared-with-machine",
        "{direction}: {rate:rate} (at {end}) is {ratio:.0%} of the <!fastest_rate?published rate><fastest_rate?"
        "{fastest_rate:rate} of the fastest pairs> on {machine} ({reference_range})<fastest_rate?, whose pairs have "
        f"different links><same_build?, if this machine is built the same way>.{_WARNING}",
    )


class DecidingOption(OptionalPartsCode):
    """The first line of a page without a verdict, which names the option that linkbench needs for a verdict."""

    INSTANCE = "instance", "To judge this result, name the machine: --instance TYPE<, such as {candidates:list 4}>."
    NICS = (
        "nics",
        "To judge this result, give the NICs that each node used (--nics 8x400G), or name the machine (--instance "
        "TYPE<, such as {candidates:list 4}>).",
    )
    NUM_RANKS = "num-ranks", "To judge this result, give the number of ranks: --num-ranks N."
    NUM_NODES = "num-nodes", "To judge this result, give the number of nodes: --num-nodes N."
    LARGER_MESSAGES = "larger-messages", "To judge this result, measure larger messages: -s 1048576, or -a."
    LARGER_SIZES = (
        "larger-sizes",
        "To judge this result, measure larger sizes: -e 8G, with each size twice the previous size.",
    )


class CountCode(OptionalPartsCode):
    """The origin of the number of ranks or nodes, if the log does not state this number."""

    RANKS_FROM_RATES = "ranks-from-rates", "ranks: {num_ranks}, derived from busbw / algbw = {ratio:.4g}"
    NODES_GIVEN = "nodes-given", "nodes: {num_nodes}, as given"
    NODES_FROM_GPUS = "nodes-from-gpus", "nodes: {num_nodes}, because a node has {num_gpus} GPUs"
    NODES_MAY_BE_PODS = (
        "nodes-may-be-pods",
        "nodes: {num_nodes}, counted from the host names. If these are names of pods, several of them may run on one "
        "node: give the number with --num-nodes",
    )


class ResultCode(OptionalPartsCode):
    """The lines of the section "What you got"."""

    MODELLED = "modelled", "MODELLED: computed from the links; nothing was measured"
    WRONG_DATA = (
        "wrong-data",
        "WRONG DATA in {num_wrong_rows} of {num_rows} rows, at worst {num_wrong} wrong elements at "
        "{size_bytes:bytes}<all_elements?; in each of these rows, all elements of all {num_ranks} ranks were wrong>",
    )
    EXCLUDED_ROWS = (
        "excluded-rows",
        "EXCLUDED: {num_excluded} of {num_rows} rows have contradictory figures or no numbers< (line {lines:list})>< "
        "(line {first_lines:list}, ...)><; at {size_bytes:bytes}, {why}>",
    )
    STATUS = "status", "status: {status}<: {failure}><truncated?; explain the whole log if you have it>"
    WAIVED_TESTS = (
        "waived-tests",
        "the tool waived {num_tests} tests that it says cannot run here (lines {first_line} to {last_line})",
    )
    LOG_REMARKS = "log-remarks", "the log has {num_remarks:n remark}: {remarks}<; and {num_more} more>"
    NO_BANDWIDTH = "no-bandwidth", "no row with a bandwidth"
    FIGURE = "figure", "{figure}"
    MEASURED = "measured", "measured: {measured}"
    MEANING = "meaning", "{meaning}"
    MORE_FIGURES = "more-figures", "and {num_more:n more figure}, which `linkbench import --format json` lists"
    BEST = (
        "best-row",
        "best busbw of {num_rows:n row}: {rate:rate} at {size_bytes:bytes} ({placement})<; from "
        "{flat_from_bytes:bytes} upwards, the bandwidth changes by at most 5 %>",
    )
    NIC_RATE = (
        "nic-rate",
        "at this busbw, the NICs of each node carry {rate:rate} in each direction<ring?, in a ring of all "
        "ranks><!ring?, if no data cross the NICs twice and the network does not reduce data>",
    )
    LOG_FACTS = "log-facts", "the log says: {log_facts:list}"
    SMALL_MESSAGES = "small-messages", "{time_s:time} for messages up to 1 KiB (median)"
    MACHINE = "machine", "machine: {machine}"
    UNKNOWN = "unknown", "unknown: {unknown:list}"
    COPIES = "copies", "{direction}: {range}, {count} ({test})"
    LOCAL_COPIES = "local-copies", "inside each GPU, over no link: {range} ({test})"
    COPIES_TO_ALL = "copies-to-all", "host to all GPUs at once: {range} per GPU, {count}"
    LATENCY = "latency", "{test}: {least_ns:.0f} to {most_ns:.0f} ns"


class TopologyCode(OptionalPartsCode):
    """The lines about the topology of a node."""

    GPUS = "gpus", "{num_gpus:n GPU}<: {models:list}>"
    NVLINKS = "nvlinks", "NVLink: {links}"
    NEAR_ADAPTERS = "near-adapters", "network adapters: {near}"
    LOST = "lost", "not readable: {lost:list 4}"


class BoundCode(OptionalPartsCode):
    """The lines of the section "What is possible"."""

    BOUND = (
        "bound",
        "{bound_rate:rate} by {bound} (<hard?hard bound><!hard?reference, may be exceeded><bridge?, if there is a "
        "bridge>)<, reached {share:.0%}><, {reached}>: <{wiring}; >{why} [{source}<unverified?; not verified>]",
    )
    NO_BOUND = "no-bound", "no bound is known: {why}"
    NICS_UNKNOWN = "nics-unknown", "the NICs of a node are unknown, so there is no bound on the network"
    NO_COPY_BOUND = (
        "no-copy-bound",
        "{direction}: no bound is known<shared_memory?, because host and GPU share one memory><; {rate:rate} would "
        "match {fitting}>",
    )
    NO_COPY_RATE = "no-copy-rate", "no copy over a link has a rate, so nothing can be compared with a bound"


class MissingCode(OptionalPartsCode):
    """Why no bound is known."""

    FIGURES_ONLY = "figures-only", "the tool prints neither sizes nor pairs of GPUs"
    SHARED_GPU = "shared-gpu", "ranks that share a GPU may exchange all data inside it"
    RANKS_DO_NOT_FIT = "ranks-do-not-fit", "the number of ranks does not fit the number of nodes"
    OTHER_MACHINE = "other-machine", "{instance} is not the machine of the log, which has {other_gpus:list}"
    MACHINE = "machine-unknown", "the machine is unknown (name it with --instance)"
    NUM_RANKS = "num-ranks-unknown", "the number of ranks is unknown (give it with --num-ranks)"
    NUM_NODES = "num-nodes-unknown", "the number of nodes is unknown (give it with --num-nodes)"
    PATTERN_OR_LINKS = "pattern-or-links-unknown", "no bound is defined for this pattern on these links"


class OthersCode(OptionalPartsCode):
    """The lines of the section "What others got", which is about published results."""

    WRONG_DATA = "wrong-data", "not compared: the data were wrong"
    RANKS_DO_NOT_FIT = "ranks-do-not-fit", "not compared: the number of ranks does not fit the number of nodes"
    OTHER_MACHINE = "other-machine", "not compared: {instance} is not the machine of the log"
    HOST_MEMORY = (
        "host-memory",
        "not compared: the published results are from NCCL between GPUs, and this run used another library",
    )
    NOT_COLLECTED = "not-collected", "linkbench has no published results of this tool"
    NONE_KNOWN = "none-known", "no published result matches this pattern, number of ranks, number of nodes and links"
    RESULT = (
        "result",
        "<elsewhere?same number of ranks on another machine: >{rate:rate} at {size_bytes:bytes} on {machine}<, NICs "
        "with {network_rate:rate} per node><, {note}><, limited by: {limited}> [{source}]",
    )
    OWN_SOURCE = (
        "own-source",
        "left out: [{source}] has exactly the same figures, so this source is about the same measurement",
    )
    COPIES = (
        "copies",
        "{machine} ({num_gpus} x {gpu}): <PCIe {pcie_generation} x{pcie_lanes} according to nvidia-smi, "
        ">{ranges:list}<refused?, copies between GPUs refused> [{source}, {version}]",
    )
    NO_COPIES_KNOWN = "no-copies-known", "no copy rates of this machine or GPU are published"


class ExplainNote(OptionalPartsCode):
    """The notes below the verdict.

    A note says what a reader should know before quoting a figure. Notes do not explain the verdict.
    """

    ABOVE_PORT = (
        "above-port",
        "{rate:rate} is more than ring algorithms reach on a port of {port_rate:rate}. With NVLS, the switch adds "
        "the data but busbw still counts 2(n-1)/n of the payload, so busbw can exceed the port's rate",
    )
    PLACEMENTS_DIFFER = (
        "placements-differ",
        "at the {num_sizes} largest sizes, {faster} is {excess:.0%} faster: the other placement either moves more "
        "data in memory or uses unregistered buffers",
    )
    BANDWIDTH_FALLS = (
        "bandwidth-falls",
        "bandwidth falls from {rate:rate} at {size_bytes:bytes} to {last_rate:rate} at {last_bytes:bytes}: another "
        "algorithm<between_nodes?, or congestion between the nodes>"
        "<!between_nodes?, or buffers that are no longer cached>",
    )
    BANDWIDTH_DIPS = (
        "bandwidth-dips",
        "bandwidth falls from {rate:rate} at {size_bytes:bytes} to {lowest_rate:rate} at {lowest_bytes:bytes}, and "
        "rises again to {again_rate:rate} at {again_bytes:bytes}: the sizes in between are slow because of another "
        "algorithm<between_nodes?, congestion between the nodes> or another reason that affects only these sizes",
    )
    FIRST_ROW_WARMING = (
        "first-row-warming",
        "the first row ({time_s:time}) still includes warm-up; the small-message time is the median over all sizes "
        "up to 1 KiB",
    )
    TYPES_DIFFER = (
        "types-differ",
        "{slow_type} reaches {slow_rate:rate}, but {fast_type} reaches {fast_rate:rate}: compare only equal types",
    )
    SAME_AS_PUBLISHED = (
        "same-as-published",
        "the published copy rates of {machine} have exactly the same digits as this log: either they are from the "
        "same measurement, or both machines reach the limit of the link",
    )
    ONE_OF_TWO_WAYS = (
        "one-of-two-ways",
        "in two-way tests between GPU and host, a figure is the rate of one direction while the other is busy, not "
        "the sum of both directions",
    )
    SUM_OF_TWO_WAYS = (
        "sum-of-two-ways",
        "in two-way tests between GPUs, a figure is the sum of both directions: half of it goes each way",
    )


COPY_DIRECTIONS = {
    "h2d": "host to GPU",
    "d2h": "GPU to host",
    "d2d": "GPU to GPU",
    "through_host": "GPU to GPU through the host",
    "h2d_pageable": "pageable host memory to GPU",
    "d2h_pageable": "GPU to pageable host memory",
}
