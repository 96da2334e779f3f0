"""What nobody but koordra should do with koordra's devices: found, reported, never guessed around.

conflict_rules      by what is published: classes, slices, two drivers for one device
allocation_audit    by what is allocated: another writer, more than there is
foreign_drivers     nodes on which somebody else gives out the same GPUs
conflict_watch      which of it to judge again, and when to report it
"""
