"""The container runtime: CDI and the runtime side of NRI; containers are records, and
their commands processes where that is wanted."""
