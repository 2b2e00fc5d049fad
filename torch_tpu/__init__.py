"""PyTorch on TPUs as a native device: `import torch` is enough, `device="tpu"` is the rest."""


def _autoload() -> None:
    """The `torch.backends` entry point: called by `import torch`."""
    from torch_tpu.device import register

    register.register()
