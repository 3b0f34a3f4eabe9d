"""Published measurements, read from where they lie, with their known defects taken out.

Each loader names the rules by which it drops or corrects rows and counts what each one did; the
files themselves are never part of this package.
"""
