"""The command ``archipelago``: its commands, their tables and plots.

Import: ``app.main``.
Never: compute what another program would need; that belongs to ``service``.
"""
