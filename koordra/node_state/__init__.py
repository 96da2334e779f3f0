"""The files that the kubelet plugin and the NRI hook of a node exchange.

Both are processes of their own and share a state directory. Each file has one encoder and one decoder, here;
a changed format has a new schema name, so that a plugin and a hook of different versions refuse what they do
not know.

layout            where each file lies
claim_ref         a claim's name and uid, and the marker by which the hook recognises the claim
prepared_claim    prepared/<uid>.json       plugin -> hook: what a container gets with each device of a claim
                  guarded.json              plugin -> hook: every device node of a GPU or NIC of the node
claim_network     network/<uid>.json        plugin -> hook: what is done to the network of a claim's pod
                  network/attached/...      hook -> plugin: what was done, and how to undo it
reader            the hook's reads: cached, and only of files that nobody else could have written
disk              files replaced as a whole, durably
selinux           types of the files that containers get
locks             one writer of the state directory, one owner of the sockets, one hook of the node
strict_json       tables of fields: encoding, and decoding that names the field that is wrong
"""
