"""Generated from proto/ by `make generate`; never edited. Messages, and stubs of gRPC services."""

GENERATED_WITH = "grpcio-tools 1.85.1"
