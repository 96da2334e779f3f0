"""How a container is kept within its share of a GPU: backends behind one interface. The files of a backend
stand in one folder.

backend     what a backend is, and what it is told
packages    the node's backends by name, those of other packages included
shares      the claims' parts of GPUs as backends are told of them
realisation
            has them make and undo the shares of claims, and keeps their journals
card_calls  one call at a time for each card, and each with a limit
card_looks  looks whether cards still keep their shares
card_watch  does so every few seconds
none        the share is accounted for, and not enforced
timeslicing the driver gives the card to its shares in turns
hami_core   HAMi's library, as the node has it, inside the container
mps/        the shares of a card are clients of one MPS server
own_file_system
            folders that are a file system in memory
limiter/    a memory limit inside the container, by a library in front of the driver's

Class, claim and the operator's policy determine the backend of a share by its name
(koordra.api.opaque.isolation).
"""
