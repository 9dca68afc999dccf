"""Stands in for the programs of perftest 6.06: takes their options, prints their tables, moves nothing.

Server and client meet on the TCP port of `-p`, as the real programs do. A message of the real programs takes 2 us and
12.5 GB/s here, and half of this rate in GPU memory. `STANDIN_PERFTEST`: what goes wrong: client-fails, server-fails,
silent (the client prints no row). Words: the program's name, then its options.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

VALUED = {"-s": "size", "-n": "iterations", "-t": "depth", "-d": "device", "-i": "port_of_device", "-p": "port"}
FLAGS = {"-F": "any_clock", "--report_gbits": "gbits", "-b": "both"}
RULE = "-" * 87


def options(words: Sequence[str]) -> dict[str, str]:
    """The options by name; an unknown option ends the program with 1, as in getopt."""
    given: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        if word in VALUED:
            given[VALUED[word]] = left.pop(0)
        elif word in FLAGS:
            given[FLAGS[word]] = "1"
        elif word.startswith("--use_cuda="):
            given["cuda"] = word.partition("=")[2]
        elif word.startswith("-"):
            sys.exit(f"{word}: unknown option")
        else:
            given["server"] = word
    return given


def run(program: str, words: Sequence[str], mishaps: frozenset[str]) -> int:
    """One end; the exit code."""
    if list(words) == ["--version"]:
        print("Version: 6.06")
        return 0
    given = options(words)
    latency = program.endswith("_lat")
    if latency and ("both" in given or "gbits" in given):
        sys.exit("latency tests have no such option")
    if "server" not in given:
        return serve(int(given["port"]), mishaps)
    with socket.create_connection((given["server"], int(given["port"])), 5) as server:
        server.sendall(b"parameters")
        if server.recv(16) != b"parameters":
            return 1
    if "client-fails" in mishaps:
        print(" Failed to modify QP 342 to RTR\n Unable to Connect the HCA's through the link")
        return 1
    verb = program.split("_")[1].capitalize()
    both = "Bidirectional " * ("both" in given)
    print(f"{RULE}\n                    RDMA_{verb} {both}{'Latency' if latency else 'BW'} Test")
    print(f" Dual-port       : OFF\t\tDevice         : {given['device']}")
    print(" Number of qps   : 1\t\tTransport type : IB\n Connection type : RC\t\tUsing SRQ      : OFF")
    print(f" TX depth        : {given.get('depth', 128)}\n Mtu             : 4096[B]\n Link type       : IB\n{RULE}")
    print(" local address: LID 0x11 QPN 0x0128 PSN 0x1\n remote address: LID 0x12 QPN 0x0129 PSN 0x2\n" + RULE)
    size, count = int(given["size"]), int(given.get("iterations", "1000" if latency else "5000"))
    rate = 12.5e9 / (2 if "cuda" in given else 1)
    if "silent" not in mishaps:
        row(size, count, rate * (2 if both else 1), latency, "gbits" in given)
    print(RULE)
    return 0


def serve(port: int, mishaps: frozenset[str]) -> int:
    """Wait for the client."""
    if "server-fails" in mishaps:
        print(" Did not detect devices \n If device exists, check if driver is up")
        return 1
    with socket.create_server(("", port)) as listening, listening.accept()[0] as client:
        client.sendall(client.recv(16))
        client.recv(16)
    print("server's table")
    return 0


def row(size: int, count: int, rate: float, latency: bool, gbits: bool) -> None:
    """The titles and the row of a size."""
    if latency:
        us = 2 + size / rate * 1e6
        print(
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
            "99% percentile[usec]   99.9% percentile[usec] "
        )
        print(
            f" {size}       {count}          {us - 0.5:.2f}           {us + 9:.2f}         {us:.2f} \t       "
            f"{us + 0.1:.2f}        0.05   \t\t{us + 1:.2f}    \t\t{us + 8:.2f}   "
        )
        return
    unit, factor = ("Gb/sec", 1e9 / 8) if gbits else ("MiB/sec", 2.0**20)
    digits = 6 if rate / factor < 0.1 else 2
    shown = f"{rate / factor:.{digits}f}"
    print(f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]")
    print(f" {size:<7}    {count:<10}       {shown}              {shown} \t\t     {rate / size / 1e6:.6f}")


if __name__ == "__main__":
    mishaps = frozenset(os.environ.get("STANDIN_PERFTEST", "").split())
    sys.exit(run(sys.argv[1], sys.argv[2:], mishaps))
