"""The search for the counts of islands: several ways to plans and to bounds, in turns."""
