"""`stoker fetch`: the initializers of a TrainJob, which put a model and a data set into its workspace."""
