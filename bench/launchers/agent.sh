#!/bin/sh
# MPI calls this in place of ssh: see bench/controller/hosts.py.
exec "${BENCH_PYTHON:-python3}" -m bench.controller.hosts --as-ssh "$@"
