"""Agent programs: how each is started, what it is told, and how it ends."""
