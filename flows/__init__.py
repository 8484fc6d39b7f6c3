"""The whole journey, driven by Prefect; and the `treadle` command."""
