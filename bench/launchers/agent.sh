#!/bin/sh
# MPI calls this in place of ssh: see bench/controller/hosts.py. MPICH does not report to which host a connection failed,
# so each connection of mpirun adds lines to a file in the job's folder (read by bench/controller/connections.py):
#   open HOST PROCESS              the connection is about to be opened by this shell
#   failed HOST CODE first|later   it failed while mpirun ran; first: all other connections were still open
note() { [ -z "$BENCH_LEASE" ] || { printf '%s %s %s %s\n' "$@" >>"$notes"; } 2>/dev/null; }

# Checks that this connection is the first to fail: no line says that another one failed, and the shells of all others
# are children of the same mpirun that have not ended.
is_first() {
    while read -r what _ number _; do
        case $what in
            failed) return 1 ;;
            open) is_running "$number" || return 1 ;;
        esac
    done <"$notes"
}
is_running() {
    read -r _ _ state parent _ <"/proc/$1/stat" || return 1
    [ "$parent" = "$PPID" ] && [ "$state" != Z ] && [ "$state" != X ]
}

for host; do case $host in -*) ;; *) break ;; esac; done
notes=${BENCH_LEASE%/*}/mpirun-connections
note open "$host" $$ ''
# A signal for this shell is meant for the agent. If this shell is killed, the agent gets a TERM (--as-ssh).
ended='' again=yes code=127
trap 'ended=yes again=yes; kill "$!" 2>/dev/null' HUP INT TERM
BENCH_SHELL=$$ "${BENCH_PYTHON:-python3}" -m bench.controller.hosts --as-ssh "$@" &
[ -z "$ended" ] || kill "$!" 2>/dev/null
while [ -n "$again" ]; do # a signal interrupts `wait`
    again=''
    wait "$!"
    now=$?
    [ "$now" -eq 127 ] || code=$now # 127: the agent ended before the signal
done
# If mpirun has ended, this process has another parent: the agent then failed because mpirun ended.
if [ "$code" -ne 0 ] && [ -z "$ended" ] && [ -n "$BENCH_LEASE" ] && is_running $$ 2>/dev/null; then
    order=later
    is_first 2>/dev/null && order=first
    note failed "$host" "$code" "$order"
fi
exit "$code"
