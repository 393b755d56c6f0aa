"""What recurrent layers keep of a sequence, in numbers (`signatures.py`)."""

STATE_ROW = 7
"""Numbers of a row of `state_rows`."""
CHUNK = 16
"""Tokens behind which a base changes, of kernels that compute in chunks (`kernels/cpu/chunks.py`);
their vectors of weights W are as long."""
NUMBERS = 2 * CHUNK
"""What these keep of a head beside its changes: W, then E, and room."""
