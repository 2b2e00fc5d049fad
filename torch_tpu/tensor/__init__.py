"""What a storage holds and how a tensor looks at it: `views.py` is the algebra of sizes, strides and offsets."""
