"""Stands before a tool of the tests that the operator's image has not.

The Kubernetes client imports it where it is there, and it takes twice as long to import as the
whole operator.
"""

raise ImportError("not in the operator's image")
