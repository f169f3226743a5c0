"""One server before several replicas of a model, on Ray Serve. The extra `ray` installs what it
needs; `run.serve` starts it. Only `router`, `deployments` and `run` import Ray."""
