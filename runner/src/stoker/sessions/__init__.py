"""Sessions: TrainJobs with samplers that no other run can reach, and what makes, shows and ends them."""
