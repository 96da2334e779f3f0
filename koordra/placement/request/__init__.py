"""What is asked: which claims are placed together (`claim_groups`); which groups ask the same, and what keeps
them off a node (`request_class`)."""
