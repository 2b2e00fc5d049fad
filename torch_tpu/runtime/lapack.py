"""LAPACK for programs on the CPU: jaxlib's foreign functions, found under names such as "lapack_sgetrf_ffi".

`register()` is called before a program with such a call is compiled or loaded; `ops/matrix.py` writes the calls.
"""

from __future__ import annotations

from functools import cache

from jaxlib import xla_client


@cache
def register() -> None:
    """Makes jaxlib's LAPACK functions callable from programs compiled for the CPU."""
    from jaxlib.cpu import _lapack  # here, because it imports scipy

    _lapack.initialize()
    for target, function in _lapack.registrations().items():
        if target.endswith("_ffi"):
            xla_client.register_custom_call_target(target, function, platform="cpu", api_version=1)
