"""Kernel times beside laws of a few parameters: one law per class of operator.

A law is fitted per (accelerator, engine and version, variant) and judged on shapes it has not seen.
"""
