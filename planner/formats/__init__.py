"""Files of ours: the plan file and the calibration file.

Import: ``plan_file`` and ``calibrations``.
Never: compute; a reader returns a value or raises an error with place and remedy.
"""
