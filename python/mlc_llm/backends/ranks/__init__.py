"""What ranks of every kind of device share: memory in which their processes meet."""
