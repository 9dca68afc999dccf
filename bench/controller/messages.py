"""Messages of the controller: codes of job failures, host findings, skipped jobs, refusals and Slurm allocations."""

from __future__ import annotations

from bench.core.codes import Code, OptionalPartsCode

_PHASE = "<; phase of {num_alike} of {num_ranks} ranks: {doing}>"


class OutcomeCode(OptionalPartsCode):
    """Why a job failed.

    If a rank reports a failure, its report contains the code of the failure (core/ends.py, rank/messages.py).
    """

    INTERRUPTED = "interrupted", "interrupted"
    NOT_WRITABLE = "not-writable", "{why}"
    FOLDER_REMOVED = (
        "folder-removed",
        "results folder {folder} was removed while job {job} ran, so the job's results are lost: run the scenario "
        "again",
    )
    HOST_UNREACHABLE = (
        "host-unreachable",
        "host {host} can no longer be reached through its agent (ssh, or `agent:` of the cluster){still_there}",
    )
    HOST_RESTARTED = "host-restarted", "host {host} restarted {up_s:time} ago, while the job ran"
    HOST_DEAD = (
        "host-dead",
        "job not started, because host {host} has not answered since job {since}: when the host answers again, "
        "continue with --resume",
    )
    RANK_STOPPED = "rank-stopped", "a stop signal or a debugger has stopped rank {rank} on {host} (phase: {doing})"
    RANK_TERMINATED = (
        "rank-terminated",
        "a SIGTERM that did not come from the launcher ended rank {rank} on {host} (phase: {doing})",
    )
    MEETING_PORT_TAKEN = (
        "meeting-port-taken",
        "the ranks' rendezvous port {port} on host {host} was in use< by a program of user {user}, which listens on "
        "{address}><job? and belongs to job {job}><other_jobs? (other jobs with processes on this host: "
        "{other_jobs:list})>: wait until the port is free, or set another `port:` for the cluster",
    )
    RANK_LOST = "rank-lost", "{who} {how}< (phase: {doing})>"
    RANK_GONE = "rank-gone", "rank {rank} on {host} ended without an error report (phase: {doing}){after}"
    RANKS_GONE = "ranks-gone", "{ranks} ended without an error report {where}{after}"
    NO_CARRIER = "no-carrier", "host {host} has no carrier on {devices:list}: check its cable or its switch port"
    CARRIER_LOST = (
        "carrier-lost",
        "host {host} lost the carrier of {devices:list} {num:n time} while the job ran: check the cable and the "
        "switch port, even if the link is up again",
    )
    CUT_OFF = "cut-off", "the other hosts cannot reach host {host} over the network"
    LINK_INTERRUPTED = (
        "link-interrupted",
        "TCP packets between hosts {a} and {b} were retransmitted several times without an answer: check the link "
        "between these hosts, even if the link works again",
    )
    HOST_INTERRUPTED = (
        "host-interrupted",
        "TCP packets between host {host} and {num} other hosts were retransmitted several times without an answer: "
        "check whether {host} was paused. Then check the cable and the switch port of this host, even if the link "
        "works again",
    )
    NEVER_HEARD = "never-heard", "{ranks} never wrote a heartbeat"
    HOST_PAUSED = (
        "host-paused",
        "the job's processes on host {host} were paused for {paused_s:.0f} s, longer than the deadline of "
        "{deadline_s:.0f} s (phase: {doing}): the host's virtual machine was paused, or the processes were stopped",
    )
    CONTROLLER_SLEPT = (
        "controller-slept",
        "the controller's machine {host} was suspended for {slept_s:.0f} s: continue with --resume",
    )
    RANK_STARVED = (
        "rank-starved",
        "rank {rank} on {host} got only {share:percent} of the CPU time that it needed (other ranks: "
        "{others_share:percent}; phase: {doing})",
    )
    SILENT_LONGEST = (
        "silent-longest",
        "rank {rank} on {host} was the first rank that stopped writing heartbeats (phase: {doing})",
    )
    NO_SIGN_OF_LIFE = "no-sign-of-life", "no heartbeat from any rank within {allowed_s:g} s" + _PHASE
    SILENCE = "silence", "no heartbeat for {silent_s:.0f} s" + _PHASE
    OTHERS_WAIT = (
        "others-wait",
        "rank {rank} ended, and {waited_s:.0f} s later other ranks still waited for it" + _PHASE,
    )
    TOO_LONG = "too-long", "the job did not end within {limit_s:.0f} s" + _PHASE
    TOO_SLOW = (
        "too-slow",
        f"the job did not end within {{limit_s:.0f}} s{_PHASE}. No rank hung, but the job was far slower than "
        "estimated: measure fewer sizes or fewer ranks, or continue with --resume",
    )
    LAUNCHER_FAILED = (
        "launcher-failed",
        "the launcher ({launcher}) {how}<, with the message {saying!r},> and no rank reported why; the launcher's "
        "output is in {log}",
    )
    TOOL_FAILED = "tool-failed", "{tool} {how}<, with the message {saying!r}>; its output is in {log} and {output}"
    TOOL_OUTPUT = "tool-output", "{tool}: {why}; its output is in {output}"
    TOOL_NO_RESULT = "tool-no-result", "{tool} ended without a result for any requested size; its output is in {output}"


class ResumeCode(Code):
    """What `--resume` finds in a run, apart from missing rows."""

    FAILED_AFTER_ROWS = "failed-after-rows", "no row is missing, but the job failed after its last row ({earlier})"


class ConnectionCode(Code):
    """What happened to the connection to a host while a job ran there."""

    RESTORED = (
        "connection-restored",
        "the connection to host {host} was lost and restored after {seconds:.1f} s; the ranks there kept running",
    )
    LOST = "connection-lost", "the connection to host {host} was lost and could not be restored within {seconds:.0f} s"
    LAUNCHER_GONE = (
        "connection-launcher-gone",
        "the connection to host {host} was lost, and the launcher there ended before the connection could be restored",
    )
    NOT_OPENED = (
        "connection-not-opened",
        "the connection to host {host} ended with exit code {exit_code} before the launcher started there",
    )
    OF_MPIRUN = (
        "connection-of-mpirun",
        "mpirun ended the job: either its connection to host {host} was lost, or its daemon on this host ended",
    )


class AllocationCode(Code):
    """How a Slurm allocation ended, or why it never started."""

    CANCELLED = "cancelled", "Slurm job {job_id} was cancelled{why}"
    TIMEOUT = (
        "timeout",
        "Slurm job {job_id} reached its time limit: raise the limit with `time` under `options:`, or measure less",
    )
    DEADLINE = "deadline", "Slurm ended job {job_id}, because the job could not finish before its deadline"
    NODE_FAIL = "node-fail", "Slurm job {job_id} ended because a node failed{why}"
    BOOT_FAIL = "boot-fail", "Slurm job {job_id} ended because its nodes did not boot"
    OUT_OF_MEMORY = (
        "out-of-memory",
        "Slurm job {job_id} used more memory than Slurm gave it: request more with `mem` under `options:`",
    )
    PREEMPTED = "preempted", "Slurm job {job_id} was preempted by another job"
    OTHER = "other-state", "Slurm job {job_id} ended as {state} with exit code {exit_code}{why}"
    NEVER_STARTS = (
        "never-starts",
        "Slurm job {job_id} can never start ({reason}): correct `options:` or `nodes:` of the cluster",
    )
    NO_ANSWER = "no-answer", "Slurm's controller has not answered for {silent_s:.0f} s; job {job_id} may still run"
    NO_CONTROLLER = (
        "no-controller",
        "cluster {cluster!r}: this machine cannot reach Slurm's controller ({why}): check slurmctld (`scontrol "
        "ping`) and slurm.conf, or run linkbench on the cluster's login node",
    )
    NOT_TAKEN = (
        "not-taken",
        "Slurm does not accept the job of cluster {cluster!r} ({why}): correct its `options:` or its `nodes:`",
    )


class PlanSkipCode(Code):
    """Why a job of a scenario is not launched."""

    NOT_MODELLED = (
        "not-modelled",
        "the model cannot simulate matrix products or copies within a GPU: it simulates only messages between ranks",
    )
    UNAVAILABLE = "transport-unavailable", "{why}"
    TOOL_IN_CONTAINERS = (
        "tool-in-containers",
        "{tool} cannot run on Kubernetes: the suite starts tools only on hosts where the tool's programs are installed",
    )
    TORCHRUN_WITHOUT_MPI = "torchrun-without-mpi", "torchrun cannot start MPI ranks: use mpirun or slurm"
    TOO_FEW_NODES = "too-few-nodes", "needs {num_nodes} nodes, but cluster {cluster!r} has {found}"
    ONE_NODE = (
        "one-node",
        "topology {topology} needs at least two nodes: on a single node, this topology is the same as {what}",
    )
    ONE_RANK = "one-rank", "with one rank, no bytes cross a link"
    TOO_FEW_RANKS = "too-few-ranks", "needs at least {least} ranks, but there are {num_ranks}"
    SCENARIO_LEAST = (
        "scenario-least",
        "the scenario measures this row only with {least} or more ranks, but there are {num_ranks}",
    )
    TOO_FEW_VICTIMS = (
        "too-few-victims",
        "{pattern} needs at least {least} measured ranks (victims), but there are {num_ranks}",
    )
    NOT_SEPARABLE = "not-separable", "{transport} cannot run two patterns at once, but {others} can"
    LADDER_ALONE = "ladder-alone", "{why}"
    LADDER_OF_PAIRS = "ladder-of-pairs", "the schedule ladder measures pairs of ranks, but {pattern} has no pairs"
    NO_GROUPS = "no-groups", "{why}"
    OTHER_TRANSPORT = "other-transport", "{tool} can be compared only with transport {wanted}, not with {transport}"


class PlanRemark(Code):
    """Remarks of a plan, in addition to those in core/remarks.py."""

    SPARE_HOSTS = (
        "spare-hosts",
        "cluster {cluster!r} has `nodes: {num_nodes}` but {num_hosts} hosts in `hosts:`, so the run does not use "
        "{spare}: omit `nodes:` to use all hosts",
    )
    OTHER_MPIRUN = (
        "other-mpirun",
        "this plan uses the mpirun {chosen}, but PATH also has {other}: to choose another mpirun, set `mpirun:` in "
        "bench.yaml",
    )
    FACTOR_IGNORED = (
        "factor-ignored",
        "{transports:list} would ignore `{key}`: jobs over these transports are planned without this key",
    )
    FACTOR_OF_OTHER_PATTERNS = "factor-of-other-patterns", "`{key}` has no effect on {patterns:list}: omit it"
    FACTOR_ALONE = "factor-alone", "`{key}` has no effect without `{other}`: omit it, or set `{other}`"


class ControllerError(Code):
    """Why the controller refuses a request or ends with an error."""

    NO_NSYS = "no-nsys", "--profile nsys needs the program nsys on PATH: install NVIDIA Nsight Systems"
    NO_TORCH_PROFILER = "no-torch-profiler", "--profile torch needs torch: pip install torch"
    NO_PROFILED_JOB = (
        "no-profiled-job",
        "--profile cannot record any job of this run, because each job is modelled, runs on Kubernetes or runs "
        "another tool: omit --profile",
    )
    PROFILE_ELSEWHERE = (
        "profile-elsewhere",
        "--profile can record only jobs that this machine starts: run the command inside a Slurm allocation",
    )
    NOT_PROFILED = (
        "not-profiled",
        "the profiled launch failed ({why}), but the run's results are kept: see the launch's output in {log}",
    )
    LAUNCH_FAILED = (
        "launch-failed",
        "launch {launch} ended with exit code {exit_code} (command: {command}); the results of earlier launches are "
        "kept",
    )
    NO_INSTANCE = (
        "no-instance",
        "cluster {cluster!r} cannot be modelled without an instance type: set `instance:` of the cluster in "
        "bench.yaml (`linkbench list` shows the types)",
    )
    CLUSTER_GONE = (
        "cluster-gone",
        "cluster {cluster!r} of this run cannot be read ({why}): restore its entry, or name another "
        "file with --config FILE",
    )
    CLUSTER_CHANGED = (
        "cluster-changed",
        "cluster {cluster!r} in {config} differs from the run's plan in {keys:list}: restore these keys, name another "
        "file with --config FILE, or start a new run",
    )
    SECRET_FACTOR = (
        "secret-factor",
        "scenario {scenario!r}: the value of {name} in `env:` looks like a secret, and every row would store this "
        "value: write `{name}: from-environment`",
    )
    HOSTS_DIFFER = "hosts-differ", "cluster {cluster}: {why}"
    LIKE_DIFFERS = (
        "like-differs",
        "`like: {like}` sets {name} to {fixed}, but {name} {given} was requested: omit {name}",
    )
    LAUNCHER = "launcher", "cluster {cluster!r}: {why}"
    SETUP_IN_CONTAINERS = (
        "setup-in-containers",
        "cluster {cluster!r}: the lines of `setup:` cannot run in containers: put these lines into the image",
    )
    NO_JOBS = "no-jobs", "no job of scenario {scenario!r} can {verb} on cluster {cluster!r}: {reasons}; {remedy}"
    BY_HAND = (
        "by-hand",
        "cluster {cluster!r} uses {launcher}, so you submit the jobs yourself: use `plan` instead of `run` (make "
        "plan), and pipe the printed commands into sh",
    )
    NO_MPIRUN = (
        "no-mpirun",
        "cluster {cluster!r} sets `mpirun: {mpirun}`, but this machine has no such program: correct the path, or omit "
        "`mpirun:` to use the mpirun next to the Python interpreter or on PATH",
    )
    NO_LAUNCHER = (
        "no-launcher",
        "cluster {cluster!r} starts its ranks with {launcher}, but {why}: run linkbench on a machine that reaches "
        "{cluster}; {instead}",
    )
    HOSTS_MISSING = (
        "hosts-missing",
        "a job of cluster {cluster!r} needs {num_nodes} nodes, but `hosts:` of the cluster lists {num_hosts:n host}: "
        "add the missing hosts, or use a launcher that assigns the hosts (slurm)",
    )
    TOO_FEW_GPUS = (
        "too-few-gpus",
        "this machine has {num_gpus:n GPU}, but cluster {cluster!r} ({instance}) starts {num_ranks:n rank} per node, "
        "one per GPU: run linkbench on a machine of that type; {instead}",
    )
    UNAVAILABLE = "unavailable", "cluster {cluster!r} cannot be measured from here: {why}; {instead}"
    NOT_STARTED = "not-started", "job {job} could not be started ({why}): {program}"
    NO_GUARD = (
        "no-guard",
        "the guard process could not be started ({why}); without it, a job could keep running after the controller "
        "dies",
    )
    NO_TOOL = "no-tool", "linkbench cannot start {tool}, but `linkbench import` reads its logs"
    NO_TOOL_FOLDER = (
        "no-tool-folder",
        "{folder} is not a folder: --tool-path (or {variable}) must name the folder of {tool}",
    )
    RETEST_IN_ALLOCATION = (
        "retest-in-allocation",
        "a retest must run inside a Slurm allocation: run `salloc --nodes={num_nodes}{nodelist} linkbench run "
        "--retest {run}`",
    )
    RETEST_ON_KUBERNETES = (
        "retest-on-kubernetes",
        "a retest cannot choose hosts on Kubernetes: run the whole scenario again",
    )
    RETEST_HOSTS = (
        "retest-hosts",
        "`hosts:` of cluster {cluster!r} in bench.yaml does not list {hosts:list}: write the hosts' own host names "
        "into `hosts:`, or run the whole scenario again",
    )


class FindingCode(OptionalPartsCode):
    """Problems of hosts before a run. `{named}`: "host h1" or "hosts h1, h2"."""

    NAMED_TWICE = "named-twice", "`hosts:` names {host} {times} times: name each host once"
    PORT_TAKEN = (
        "port-taken",
        "the ranks' rendezvous port {port} on host {host} is taken ({why}): end the process that uses it, or set "
        "another `port:` for the cluster",
    )
    RESULTS_NOT_SHARED = (
        "results-not-shared",
        "the results folder {folder} of this machine is not shared with host {host}, where rank 0 writes the results: "
        "name a shared folder with --results DIR, or start the run on {host}",
    )
    RESULTS_NOT_WRITABLE = (
        "results-not-writable",
        "host {host} cannot write to {folder} ({why}): free some space, change the folder's permissions, or use "
        "another folder with --results DIR",
    )
    RESULTS_FULL = (
        "results-full",
        "host {host} has only {free_mib} MiB left in {folder}: free some space, or use another folder with --results "
        "DIR",
    )
    TOO_FEW_GPUS = (
        "too-few-gpus",
        "host {host} has {num_gpus:n GPU} for {num_ranks:n rank}, but each rank needs its own GPU: lower "
        "`ranks_per_node`, or remove the host from `hosts:`",
    )
    LITTLE_MEMORY = (
        "little-memory",
        "host {host} has only {free_mib} MiB of free memory for {num_ranks:n rank}: end other programs there, or start "
        "fewer ranks",
    )
    FEW_FILES = (
        "few-files",
        "a process on host {host} may open only {max_files} files, but a rank in a job of {num_ranks:n rank} may need "
        "{needed}: raise the limit with `ulimit -n` or in /etc/security/limits.conf",
    )
    LITTLE_SHM = (
        "little-shm",
        "/dev/shm on host {host} has only {free_mib} MiB left for {num_ranks} ranks: free space there, or start the "
        "container with --shm-size={needed_mib}m",
    )
    LITTLE_LOCKED_MEMORY = (
        "little-locked-memory",
        "host {host} lets a process lock only {max_kib} KiB of memory, too little for RDMA: set `ulimit -l unlimited`",
    )
    BUSY = (
        "busy-host",
        "host {host} is busy: {causes:list}<programs? (busiest programs: {programs:list}); end these programs, or "
        "measure later><!programs?; measure later>",
    )
    NO_DEVICE = (
        "no-device",
        "the network device {device} (from {where}) does not exist on {named}: correct the name ({first} has {found})",
    )
    NAME_UNKNOWN = (
        "name-unknown",
        "the name {host} is unknown on {named} ({why}): correct the name in `hosts:`, or add the name to DNS or "
        "/etc/hosts there",
    )
    NAME_IS_LOOPBACK = (
        "name-is-loopback",
        "on {named} the name {host} resolves to a loopback address (127.*): correct /etc/hosts there",
    )
    OWN_NAME_UNKNOWN = (
        "own-name-unknown",
        "host {host} cannot resolve its own name {name} ({why}), but Gloo needs an address for this name: add the "
        "name to /etc/hosts there, or set the network interface with `env: {{GLOO_SOCKET_IFNAME: ...}}`",
    )
    OWN_NAME_IS_LOOPBACK = (
        "own-name-is-loopback",
        "host {host} resolves its own name {name} to {address}, where other hosts cannot reach Gloo: in /etc/hosts "
        "there, remove this name from the line of {address}, or set the network interface with `env: "
        "{{GLOO_SOCKET_IFNAME: ...}}`",
    )
    SAME_MACHINE = "same-machine", "{named} have the same host name {name}: {remedy}"
    VERSIONS_DIFFER = (
        "versions-differ",
        "{what} is {value} on {named} and {usual} on {others}: {remedy} on all hosts",
    )
    SOURCE_DIFFERS = (
        "source-differs",
        "the suite's files on {named} ({source}) differ from the files on this machine ({own}): copy this machine's "
        "checkout there",
    )
    NOT_TRIED = (
        "not-tried",
        "host {host} answered the first check, but could not run the port check that followed ({why}): check the "
        "state of this host",
    )
    CLOCKS_APART = (
        "clocks-apart",
        "the clocks of hosts {a} and {b} are {apart_s:.1f} s apart: set the clocks with chrony or ntpd",
    )
    CLOCK_OFF = (
        "clock-off",
        "the clock of host {host} is {off_s:.1f} s {direction} the clocks of the other hosts: set the clock with "
        "chrony or ntpd",
    )
    SETUP_FAILS = (
        "setup-fails",
        "`setup:` of cluster {cluster!r} fails on this machine ({why}): correct these lines. In /bin/sh, `module` "
        "works only after `. /etc/profile.d/modules.sh`",
    )
    NO_OPTION = "no-option", "`options:` of cluster {cluster!r}: {launcher} has no option {option!r}{nearest}"
    NOT_REACHED = (
        "not-reached",
        "{named} cannot be reached by `{agent}` ({why}): correct `hosts:` or `agent:` of the cluster",
    )
    NO_INPUT = (
        "no-input",
        "{named} gets no standard input from `{agent}`: add -i to `agent:` (docker exec -i, kubectl exec -i), or "
        "remove -n (ssh)",
    )
    NO_REPLY = (
        "no-reply",
        "{named} returned no output through `{agent}`: correct `agent:`. linkbench appends a command to the agent, "
        "and the agent must run this command on the host",
    )
    NO_REPLY_IN_TIME = (
        "no-reply-in-time",
        "{named} was reached but did not answer in time: check whether the host or its name server hangs",
    )
    NO_INTERPRETER = (
        "no-interpreter",
        "{named} has no interpreter {python}: install it there, or set the right one with `python:`",
    )
    NO_SUITE = (
        "no-suite",
        "{named} cannot import the suite ({why}): copy {folder} there, and install the same Python packages as on "
        "this machine",
    )
    OTHER_SUITE = (
        "other-suite",
        "the version of the suite on {named} differs from the version on this machine: copy this machine's checkout "
        "there",
    )
    PROBE_FAILED = "probe-failed", "{named} could not answer ({why}): run `{command}` there to see why"


class LinkCode(Code):
    """What is wrong with a link between two hosts, or with all links of a host.

    In each message, the words after "tried" name what the probe used, such as a port or a protocol.
    """

    NOBODY_CONNECTS = (
        "nobody-connects",
        "no other host can connect to host {host} ({why}; tried port {port} of {address}): {remedy}",
    )
    CONNECTS_TO_NOBODY = (
        "connects-to-nobody",
        "host {host} cannot connect to any other host ({why}; tried port {port} of {address}): {remedy}",
    )
    HOST_UNHEARD = (
        "host-unheard",
        "packets from host {host} to the other hosts are lost, but packets from these hosts to {host} arrive (tried "
        "TCP and UDP): {remedy}",
    )
    HOST_HEARS_NOTHING = (
        "host-hears-nothing",
        "packets from the other hosts to host {host} are lost, but packets from {host} to these hosts arrive (tried "
        "TCP and UDP): {remedy}",
    )
    ONE_WAY = (
        "one-way-link",
        "packets from host {a} to host {b} ({address}) are lost, but packets from {b} to {a} arrive (tried TCP and "
        "UDP port {port}): {remedy}",
    )
    NOT_CONNECTED = (
        "not-connected",
        "host {a} cannot connect to host {b} at {address} ({why}; tried TCP port {port}): {remedy}",
    )
    NEITHER_CONNECTED = (
        "neither-connected",
        "hosts {a} and {b} cannot connect to each other ({why}; tried port {port} of {address}): {remedy}",
    )
    PARTITION = (
        "partition",
        "no packet passes between {first} and {second} (tried TCP and UDP): {remedy}",
    )
    MORE_PAIRS = "more-pairs", "the same problem exists between {num:n more pair} of hosts"
    STALLS = (
        "link-stalls",
        "a message of {num_bytes} bytes from host {a} to host {b} ({address}) stalls after {received_bytes} bytes, "
        "but short messages arrive (tried TCP port {port}): check the MTU of the path",
    )
    SMALL_MTU = (
        "small-mtu",
        "packets of {lost} bytes from host {a} to host {b} ({address}) are lost, but packets of {largest} bytes "
        "arrive (tried UDP port {port}): set the hosts' MTU ({mtu}) on every switch of the path",
    )
    SMALL_MTU_OF_HOST = (
        "small-mtu-of-host",
        "packets of {lost} bytes between host {host} and all other hosts are lost, but packets of {largest} bytes "
        "arrive (tried UDP): set the hosts' MTU ({mtu}) on the switch port of {host}",
    )
    MTU_DIFFERS = (
        "mtu-differs",
        "the MTU is {mtu} on {named} ({devices:list 4}), but {usual} on {others}: set the same MTU on all hosts",
    )
    DUPLICATE_ADDRESS = (
        "duplicate-address",
        "{named} have the same address {address} (MAC {macs:list}): give each host its own address",
    )
    ADDRESS_TAKEN = (
        "address-taken",
        "another machine uses the address {address} of host {b}: host {a} sees MAC {mac} at this address, but the "
        "devices of {b} have {own:list}. Give each machine its own address",
    )
    ADDRESS_MOVED = (
        "address-moved",
        "for some time, another machine{where} answered at the address {address} of host {host}: the MAC there was "
        "{mac}, but the devices of {host} have {own:list}. Give each machine its own address",
    )
    OTHER_HOST_ANSWERS = (
        "other-host-answers",
        "host {a} looks for host {b} at {address}, but host {other} answers there: correct DNS or /etc/hosts on {a}",
    )
