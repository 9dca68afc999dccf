"""nvbandwidth, started beside `cuda_copy`; its matrices of v0.1 to v0.8 read, as text or JSON."""

from bench.tools._nvb_reader import Nvbandwidth
from bench.tools._nvb_tool import NvbandwidthTool

TOOL = NvbandwidthTool()
READER = Nvbandwidth
