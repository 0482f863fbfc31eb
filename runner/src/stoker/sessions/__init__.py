"""Sessions: TrainJobs with samplers of their own that nobody else reaches, and what makes, shows and ends them."""
