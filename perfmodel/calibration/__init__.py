"""From measured runs to corrections with intervals, before and while serving.

Import: ``from_runs``, ``corrections``, ``online``, ``uncertainty``.
Never: change a catalogue.
"""
