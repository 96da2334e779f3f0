"""The Node Resource Interface (NRI) in pure Python, and koordra's hook on it.

stub             Plugin (subclass it) and Stub (keeps it registered with the runtime); README.md says how
example          a plugin made with it
transport/       the library below the stub: mux, ttrpc, its server, events, instrumentation
hook/            what a container may have: the rules (pure), and the plugin that applies them
verify/          whether running containers have what they should have
service          the hook's process, wired together
"""
