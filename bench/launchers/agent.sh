#!/bin/sh
# What an MPI calls in ssh's place: bench/controller/hosts.py says how a host is reached and what goes along.
exec "${BENCH_PYTHON:-python3}" -m bench.controller.hosts --as-ssh "$@"
