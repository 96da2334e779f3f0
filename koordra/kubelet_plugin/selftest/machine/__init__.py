"""The machine of a self test, before koordra does anything to it.

seen_machine     koordra's discovery, where this may be a container or a sandbox
nvidia_smi       what nvidia-smi says of the machine, and where the discovery differs
facts            versions, processes and logs that a report needs beside the steps
scratch          a folder of the self test's own
aside            a question to a driver that may hang
"""
