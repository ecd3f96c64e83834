"""The mixture-of-experts layer: router, balancer, dispatch, experts."""
