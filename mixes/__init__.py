"""Samples -> solved, locked and packed mix."""
