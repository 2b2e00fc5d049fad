"""Whether a device computes what PyTorch's CPU does: PyTorch's own operator database, samples and tolerances, and
samples by hand (`overloads.py`) of what the database does not reach.

Knows nothing of this backend but the counter of CPU fallbacks, so it runs on any device. `catalog.py` lists the cases,
`runner.py` runs one, `suite.py` runs many in processes of their own, `gaps.py` compares the outcome with what is
declared in `gaps.toml`. Needs the packages that `torch.testing` needs, which the extra `dev` installs.
"""
