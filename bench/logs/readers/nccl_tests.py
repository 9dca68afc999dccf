"""nccl-tests: run beside transport `nccl`; logs of every version, and of rccl-tests, are read as text or JSON."""

from bench.logs.readers._nccl_reader import NcclTests
from bench.logs.readers._nccl_tool import NcclTestsTool

TOOL = NcclTestsTool()
READER = NcclTests
