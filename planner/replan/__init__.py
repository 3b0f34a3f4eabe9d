"""Re-planning, pure: what a published table is still worth, and the least change that helps.

``weigh`` says what each rung reaches on the observed demand, ``decide`` whether one is taken.
docs/designs/0007-replanning-decision.md has the reasons.
"""
