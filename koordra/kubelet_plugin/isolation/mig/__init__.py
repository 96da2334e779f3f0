"""Backend `mig`: an instance of a card in MIG mode is made when a claim that has its place is prepared, and
removed with it.

    journal     what is written down of one
    instances   makes and removes one on the card, step by step, each known before it is taken
    backend     what Prepare asks for
    mode        switches the MIG mode of a card
    switching   has that done where a claim waits for it; `mode_journal` is what it remembers
"""
