"""Backend `mps`: the shares of a card are clients of MPS servers, which keep their parts of memory and
multiprocessors.

backend        what is done to the card, and what a container gets
daemon         the control daemon of one card, and commands to it
one_server     by the second version of its protocol
named_server   by the third, which newer drivers have: limits for each claim
"""
