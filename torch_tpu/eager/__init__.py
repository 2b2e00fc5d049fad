"""From ATen calls to programs: dispatch, tracing, host-side operators, transfers, fallback.

The hot path is csrc/dispatch.cpp; `dispatch.py` is its miss path and the file to read first, then `trace.py`.
"""
