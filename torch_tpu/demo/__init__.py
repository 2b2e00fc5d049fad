"""What `torch-tpu demo` runs: a real language model answers, is checked against the CPU, and is fine-tuned.

Ordinary PyTorch and Transformers code; the only trace of this project is the name of the device. Read `main.py` first.
"""
