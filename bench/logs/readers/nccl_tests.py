"""Read logs of nccl-tests of every version, and of rccl-tests, as text or JSON.

The programs can be run together with transport `nccl`.
"""

from bench.logs.readers._nccl_reader import NcclTests
from bench.logs.readers._nccl_tool import NcclTestsTool

TOOL = NcclTestsTool()
READER = NcclTests
