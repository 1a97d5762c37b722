import sys
from pathlib import Path

import torch

# helpers beside the tests are imported by name; the repository root stays off the path
sys.path.insert(0, str(Path(__file__).parent))

torch.set_num_threads(1)
