"""What `koordra explain` answers about one claim, pod, gang or node, as a document. Pure.

question       what is asked: a kind of object and its name
view           what it is answered from: the cache and the engine, the leader's or made of a full read
answer         from a question to the document
claims         one claim: why it waits, or why its devices are these
pods           one pod: its claims
other_words    what a pod asked for in the words of another stack, and its claims in these words
gangs          one gang: its members, and what those that wait lack
nodes          one node: its devices, who holds them, and who waits that could run there
forecast/      what the controller would do with objects that were read, or never applied
device_rows    the devices of nodes, for `koordra devices` too
isolation      what is enforced of an allocated device, and what is only accounted for
"""
