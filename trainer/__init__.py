"""Mix lock -> Batch -> Checkpoint."""
