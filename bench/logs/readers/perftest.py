"""Read logs of perftest (ib_write_bw, ib_send_lat, ...).

linkbench can also run ib_write_bw and ib_write_lat between two hosts, in host memory and in GPU memory.
"""

from bench.logs.readers._perftest_reader import Perftest
from bench.logs.readers._perftest_tool import PerftestTool

TOOL = PerftestTool("write")
READER = Perftest
