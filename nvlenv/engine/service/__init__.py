"""The placement engine as an HTTP service: native API, kube-scheduler extender, durable state (extra `serve`)."""
