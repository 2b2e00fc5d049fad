"""PJRT: clients, arrays, executables, caches, transfers. Knows no ATen; read `client.py` first."""
