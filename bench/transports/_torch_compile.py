"""Check whether torch.compile runs on this host.

torch.compile needs a compiler and the headers of Python, which many hosts lack.
"""

from __future__ import annotations

from typing import Any


def why_not(torch: Any) -> str | None:
    """Compile a small function, and run the compiled function. Return None, or the first line of the error."""
    try:
        torch.compile(lambda values: values * 2 + 1)(torch.zeros(8))
    except Exception as error:  # whatever a missing compiler or header raises inside of torch
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return None
