"""Whether whole models compute on a device what they do on the CPU: every architecture of Transformers and timm, tiny.

`catalog.py` lists the models, `shrink.py` makes any configuration small, `inputs.py` makes a model's inputs from the
signature of its `forward`, `build.py` tries these until the model runs on the CPU, `judge.py` runs it on the device and
compares, `sweep.py` runs many in processes of their own, `report.py` writes tables. What rules cannot know is in
`exceptions.toml`. Weights are random and nothing is downloaded.
"""
