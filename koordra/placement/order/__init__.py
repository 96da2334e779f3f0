"""What was learned of the workload, as an order of states (`learned_order`); `request_models`: the GPU models that a request may run on."""
