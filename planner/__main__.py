"""``python -m archipelago.planner``: the command line where no script is installed."""

from archipelago.planner.cli import main

main()
