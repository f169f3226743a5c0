"""Drafters, one a file; the file's name is the drafter's name. Nothing is imported here."""
