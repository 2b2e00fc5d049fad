"""What keeps a program from running well on a TPU: `torch-tpu lint` and `torch_tpu.lint`.

Two analyses give the same kind of finding (`rules.py`). The one of source files (`source.py`) is Python's `ast` and the
standard library only, so that it is quick and needs no torch; `program.py` runs a function on a device that only
compiles, and says what the compiler made of it.
"""
