"""nccl-tests, started beside `nccl`; its output and rccl-tests' of any age read, as text or JSON, clean or dirty."""

from bench.logs.readers._nccl_reader import NcclTests
from bench.logs.readers._nccl_tool import NcclTestsTool

TOOL = NcclTestsTool()
READER = NcclTests
