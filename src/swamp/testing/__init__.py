"""Doubles, suites and servers for testing stores and what is built on them; shipped for plug-in authors."""
