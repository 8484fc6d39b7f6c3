"""Harness -> recording gateway -> teacher: every model call kept verbatim and token-exact."""
