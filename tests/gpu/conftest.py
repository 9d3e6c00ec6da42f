"""Without a GPU, and the packages that drive one, nothing here is even imported."""

from importlib.util import find_spec

import torch

if not torch.cuda.is_available() or find_spec("flashinfer") is None:
    collect_ignore_glob = ["test_*.py"]
