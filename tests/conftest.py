import os
import sys
from pathlib import Path

import pytest
import torch

# helpers beside the tests, and the examples, are imported by name; the repository root stays off the path
sys.path[:0] = [str(Path(__file__).parent / "support"), str(Path(__file__).parent.parent / "examples")]

torch.set_num_threads(1)

# read once, when somebody first imports Triton: without a GPU its kernels are interpreted (test_fused.py)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """A tiny checkpoint of transformers."""
    import tiny_bert

    path = tmp_path_factory.mktemp("bert")
    tiny_bert.build(path)
    return path


@pytest.fixture(scope="session")
def frames():
    """Asked for by tests that draw frames of dm_control."""
    try:
        from counterpoint.integrations.control import environment

        environment.check_frames()
    except (ImportError, OSError) as error:
        pytest.skip(str(error))
