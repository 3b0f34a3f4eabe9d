"""Predictions against published measurements: cases in, a report with figures and plots out."""
