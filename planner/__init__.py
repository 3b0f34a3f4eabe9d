"""Chooses what runs where. Pure: no Kubernetes, no asyncio, no HTTP."""
