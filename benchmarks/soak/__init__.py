"""Load and soak: many plans, idle plans, hostile plans, changes and faults for hours."""
