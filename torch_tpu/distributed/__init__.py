"""The c10d backend `tpu_dist`: collectives of device tensors between processes, one device each.

`bring_up.py` starts it, `group.py` is what `torch.distributed` calls, `programs.py` writes the StableHLO, `arrays.py`
reads and writes tensors. `torch_tpu/device/collectives.py` makes the name known at `import torch`.
"""
