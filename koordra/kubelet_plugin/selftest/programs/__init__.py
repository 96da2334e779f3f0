"""What runs in the containers of the self test: small programs, each with one question.

They use Python and the library that is tried, which is imported by name while the program runs: where it is
not installed, the answer is that it is lacking. `answer` says how they answer; `cuda_driver` and the class in
`nvml` are the driver's own interfaces through ctypes, as much of them as is asked here."""
