"""From a request to what is stored: preconditions, patches, strategies, deletion."""
