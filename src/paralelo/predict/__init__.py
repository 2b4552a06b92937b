"""Arithmetic. Standard library only: the same files run in a web page."""
