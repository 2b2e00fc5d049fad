"""The command `torch-tpu`: one module a subcommand, each a thin shell over the package."""
