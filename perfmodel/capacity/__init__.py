"""From times to what an island sustains: capacity rows, operating points, queues.

Import: ``rows``, ``operating``, ``queueing``, ``closed_loop``.
Never: depend on one model of times; all use the protocol ``perfmodel.model``.
"""
