"""Container engine, images, sandboxes and their reaper: the only folder that knows docker."""
