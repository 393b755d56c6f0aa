"""The command line: a table of commands, each loading only itself, thin over the engines."""
