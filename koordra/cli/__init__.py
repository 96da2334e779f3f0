"""Thin commands: parse, call, print. `main` is the program; every other module here is one command, loaded when it is used."""
