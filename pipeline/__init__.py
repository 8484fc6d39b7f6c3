"""Repository -> verified Task -> recorded Trajectory -> Sample."""
