"""Builds the one C++ extension, `torch_tpu._plug`; everything else is in pyproject.toml."""

import os
import sys
from pathlib import Path

from setuptools import setup

# An older build of the extension may be installed, which the Python code here would not load with.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
try:
    from torch.utils.cpp_extension import BuildExtension, CppExtension
except ModuleNotFoundError:
    sys.exit(
        "torch_tpu is built against the PyTorch that is installed, and none was found.\n"
        "Install PyTorch first, then run:  pip install --no-build-isolation ."
    )

sources = sorted(map(str, Path("csrc").glob("*.cpp")))

setup(
    ext_modules=[
        CppExtension(
            "torch_tpu._plug",
            sources,
            depends=sorted(map(str, Path("csrc").glob("*.h"))),
            extra_compile_args=["-O2", "-g0", "-fvisibility=hidden", "-Wall"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
