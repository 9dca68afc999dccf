"""Read logs of all versions of nccl-tests, and of rccl-tests, as text or JSON.

linkbench can also run these programs to compare them with the transport `nccl`.
"""

from bench.logs.readers._nccl_reader import NcclTests
from bench.logs.readers._nccl_tool import NcclTestsTool

TOOL = NcclTestsTool()
READER = NcclTests
