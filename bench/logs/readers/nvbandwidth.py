"""Read logs of nvbandwidth v0.1 to v0.8, as text or JSON.

linkbench can also run this program to compare it with the transport `cuda_copy`.
"""

from bench.logs.readers._nvb_reader import Nvbandwidth
from bench.logs.readers._nvb_tool import NvbandwidthTool

TOOL = NvbandwidthTool()
READER = Nvbandwidth
