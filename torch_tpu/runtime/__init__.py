"""PJRT: clients, arrays, executables, caches, transfers. Knows no ATen; read `client.py` first."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # here: XLA reads it when the first module of jaxlib is imported
