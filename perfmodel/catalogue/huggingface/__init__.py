"""Reads published Hugging Face ``config.json`` documents: shape and precision of any family.

Import: ``config``.
"""
