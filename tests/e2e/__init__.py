"""Real TrainJobs on a real cluster."""
