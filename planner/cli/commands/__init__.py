"""What the commands of ``cli.py`` do, one file each; imported only when a command runs."""
