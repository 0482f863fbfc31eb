"""What Kubernetes makes of a TrainJob: read, judged, and run as local processes."""
