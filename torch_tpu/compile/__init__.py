"""`torch.compile(backend="tpu")`: from Dynamo's graphs to one program each.

Dynamo captures, AOTAutograd makes functional ATen graphs of it (forward, backward, or inference), and `interpreter.py`
runs such a graph on meta tensors through the tracer that eager mode uses, so that both modes share every lowering.
`graphs.py` holds the graphs: the call cache runs them like operators, and asks here when it has no entry for a call.
`splitting.py` cuts a graph around what no program can do, `control_flow.py` has the higher-order operators,
`saved.py` keeps graphs between processes, `backend.py` is what PyTorch calls, `setup.py` tells Dynamo about the device.
"""
