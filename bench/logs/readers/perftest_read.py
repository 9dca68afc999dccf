"""Run ib_read_bw and ib_read_lat of perftest between two hosts. The target reads from the source's memory.

`perftest.py` reads the logs of both.
"""

from bench.logs.readers._perftest_tool import PerftestTool

TOOL = PerftestTool("read")
