"""The container runtime: CDI and the runtime side of NRI; containers are records."""
