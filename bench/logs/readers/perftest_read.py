"""Run ib_read_bw and ib_read_lat of perftest between two hosts.

In these tests, the target host reads from the memory of the source host. `perftest.py` reads the logs of both programs.
"""

from bench.logs.readers._perftest_tool import PerftestTool

TOOL = PerftestTool("read")
