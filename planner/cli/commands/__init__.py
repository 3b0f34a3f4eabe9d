"""The bodies of the commands, one file each; imported when a command runs."""
