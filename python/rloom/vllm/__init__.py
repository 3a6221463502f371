"""The part of RLoom that runs inside a vLLM server."""
