"""``python -m archipelago.planner``: the command line where no script is installed."""

from .cli.app import main

main()
