"""The Node Resource Interface in pure Python, and koordra's hook on it.

mux        one unix socket, several byte streams
ttrpc      frames and calls on such a stream
serving    answering calls: worker threads, deadlines, never silent
events     what a runtime can announce, by its version
stub       Plugin (subclass it) and Stub (keeps it registered); usable without koordra
oci        the small values the rules below work on
prepared   what the kubelet plugin stored: prepared claims, guarded device nodes
grants     which devices a container was really given
foreign    what another path brought into a container
adjust     the rules: a container in, an Adjustment or a Refusal out
hook       the Plugin that looks up and applies the rules
"""
