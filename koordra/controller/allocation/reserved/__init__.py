"""What is held in DeviceHolds but for gangs: Reservations, and what running claims have beyond their
allocations.

    resize_decision   what the shares of a running claim may be held to. Pure
    resizes           its wish, written as a DeviceHold for the plugin of its node

Reservations (placement/holders/reservation): what becomes of them.

    period         from when until when one counts. Pure
    seats          what becomes of its seats: what is taken from them, what is kept again. Pure
    ahead          who runs into one that begins later
    reservations   the seats: found, written as DeviceHolds, given to their owners
    status         what its status says

    written ─▶ Ahead ─start─▶ Open: seats that lack are looked for in every pass ─expires─▶ Over
                                     ├ an owner's pod takes from a seat: the seat keeps the rest
                                     └ it ends: what it had is kept again

Everything follows from the Reservation, its DeviceHolds and the claims. Before an owner's claim is allocated
the hold is written without what the claim takes, and with the claim's name: whoever is killed in between is
followed by one who finds a claim without devices, and keeps them again before anybody is planned.
"""
