"""What is asked: `groups` of claims that are placed together; which of them ask the same, and what keeps them
off a node (`request_class`)."""
