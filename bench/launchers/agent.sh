#!/bin/sh
# MPI calls this in place of ssh: see bench/controller/hosts.py. If the agent fails while mpirun runs, the job's folder
# gets a line with the host and the exit code (bench/controller/connections.py), because MPICH does not report the host.
"${BENCH_PYTHON:-python3}" -m bench.controller.hosts --as-ssh "$@"
code=$?
[ "$code" -ne 0 ] && [ -n "$BENCH_LEASE" ] || exit "$code"
for host; do case $host in -*) ;; *) break ;; esac; done
# If mpirun has ended, this process has another parent: the agent then failed because mpirun ended.
read -r _ _ _ parent _ 2>/dev/null <"/proc/$$/stat"
[ "$parent" = "$PPID" ] && printf '%s %s\n' "$host" "$code" 2>/dev/null >>"${BENCH_LEASE%/*}/mpirun-connections"
exit "$code"
