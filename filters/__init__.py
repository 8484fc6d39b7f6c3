"""Trajectory -> Verdicts: one pathology a file."""
