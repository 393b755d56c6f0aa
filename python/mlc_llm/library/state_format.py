"""What a row of `state_rows` holds (`signatures.py`)."""

STATE_ROW = 7
"""Numbers of a row."""
