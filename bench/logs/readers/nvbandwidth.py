"""nvbandwidth: can be run together with transport `cuda_copy`. Logs of v0.1 to v0.8 are read as text or JSON."""

from bench.logs.readers._nvb_reader import Nvbandwidth
from bench.logs.readers._nvb_tool import NvbandwidthTool

TOOL = NvbandwidthTool()
READER = Nvbandwidth
