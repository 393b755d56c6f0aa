"""Ranks: processes that compute one model together, each with a share of its heads and rows."""
