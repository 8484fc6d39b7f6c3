"""Who answers a harness: a vLLM server, any OpenAI-compatible URL, or the oracle that knows the gold patch."""
