"""Backend `mps`: the shares of a card are clients of one MPS server, which keeps their parts of memory and
multiprocessors.

backend    what is done to the card, and what a container gets
daemon     the control daemon of one card, and commands to it
"""
