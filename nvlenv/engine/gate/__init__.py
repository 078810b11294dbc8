"""Gated pods of Kubernetes: a gang is decided once, then each pod gets its node and loses its gate."""
