"""The routing table: write it, check it, cut it into shards, read a plan back from it.

Import: any module; ``validate`` and ``shards`` need the standard library only, for the router.
Never: import numpy, pydantic or the solver in ``validate`` and ``shards``.
"""
