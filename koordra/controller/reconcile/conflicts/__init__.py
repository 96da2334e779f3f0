"""What nobody but koordra should do with koordra's devices: found, reported, never guessed around.

conflict_rules      by what is published (classes, slices, two drivers for one device) and by what is
                    allocated
handed_over         nodes whose devices are another stack's by the operator's word, and what pods have of one
conflict_watch      which of it to judge again, when to report it, and the nodes that are left out because of
                    it
"""
