"""Read logs of ucx_perftest (UCX).

linkbench can also run this program between two ranks. UCX chooses the path: shared memory, TCP or an RDMA adapter.
"""

from bench.logs.readers._ucx_reader import UcxPerftest
from bench.logs.readers._ucx_tool import UcxPerftestTool

TOOL = UcxPerftestTool()
READER = UcxPerftest
