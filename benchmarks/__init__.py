"""Measurements of headrace: one file per question, run by `make bench`. See README.md here."""
