"""NRI's transport, without anything of koordra's.

mux                several byte streams over one unix socket
ttrpc              frames and calls on such a stream
ttrpc_server       answers calls: worker threads, deadlines, never silent
events             what a runtime can announce, by its version, and the plugin that handles it
instrumentation    what the library reports of itself, to metrics or an observer
"""
