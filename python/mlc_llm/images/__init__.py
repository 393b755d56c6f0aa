"""Images of requests: where their bytes come from, and how they become pixels of one size."""
