"""The command line: a table of commands. Each command loads only its own file."""
