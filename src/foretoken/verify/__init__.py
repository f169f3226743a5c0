"""Acceptance rules, one a file. Each is a pure function of (trees, scores, draws)."""
