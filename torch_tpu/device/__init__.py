"""What PyTorch sees: registration, `torch.tpu`, random state, memory, events, autocast. Read `register.py` first."""
