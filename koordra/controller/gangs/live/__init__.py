"""What a gang is now, told to those of its pods that have a volume for it: launchers and workers, with claims
or without.

    ranks     whose rank is which, where some members have theirs; pure
    texts     what the files say; pure
    writes    who is told when
"""
