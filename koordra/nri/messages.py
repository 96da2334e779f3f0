"""NRI's messages, for plugins: what handlers get and return (`CreateContainerRequest`,
`CreateContainerResponse`, `Container`, `PodSandbox`, ...), generated from NRI's own api.proto (proto/)."""

from koordra._proto.nri.nri_pb2 import *  # noqa: F403
