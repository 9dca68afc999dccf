"""What `ssh` is on a cluster: `python agent.py FOLDER [-option ...] HOST COMMAND ...` runs a command on a host.

As ssh does, it joins the words of the command by blanks for the far side's shell, hands its own standard input, output
and error over, and ends as the command ends (255 when the host is not there). Like ssh without a terminal, it does not
end the command when it is itself ended.
"""

from __future__ import annotations

import array
import json
import os
import socket
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

UNREACHABLE = 255


def call(folder: Path, host: str, request: dict[str, Any], stdio: tuple[int, ...] = ()) -> socket.socket:
    """Send one request to a host's daemon. Raises OSError when it is not there."""
    if (folder / f"{host}.unreachable").exists():
        raise OSError(113, "No route to host")
    daemon = socket.socket(socket.AF_UNIX)
    daemon.connect(str(folder / f"{host}.sock"))
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", stdio))] if stdio else []
    data = json.dumps(request).encode() + b"\n"
    sent = daemon.sendmsg([data], beside)
    if sent < len(data):  # else it may have done what was asked, and hung up
        daemon.sendall(data[sent:])
    return daemon


def answers(daemon: socket.socket) -> Generator[dict[str, Any], None, None]:
    """What the daemon says, one answer a line, until it hangs up."""
    with daemon.makefile("rb") as lines:
        for line in lines:
            yield json.loads(line)


def main(folder: Path, words: list[str]) -> int:
    """Run the command. Returns its exit code."""
    while words and words[0].startswith("-"):
        words = words[1:]
    host, command = words[0], " ".join(words[1:])
    try:
        daemon = call(folder, host, {"command": command}, (0, 1, 2))
    except OSError as error:
        print(f"agent: connect to host {host}: {error.strerror}", file=sys.stderr)
        return UNREACHABLE
    for answer in answers(daemon):
        if "exit" in answer:
            code: int = answer["exit"]
            return code if code >= 0 else 128 - code
    return UNREACHABLE


if __name__ == "__main__":
    os._exit(main(Path(sys.argv[1]), sys.argv[2:]))
