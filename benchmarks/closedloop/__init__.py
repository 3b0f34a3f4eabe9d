"""Islands that serve as the performance model says, behind the table that the operator publishes.

README.md says what is modelled and what is not.
"""
