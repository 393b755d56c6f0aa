"""Measures a server of OpenAI's API from the side of its clients. On the standard library alone."""
