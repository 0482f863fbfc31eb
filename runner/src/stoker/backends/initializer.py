"""Where initializers put model and data, by its public name."""

from stoker.submit.initializer import DATASET, MODEL, Initialized, Initializer, Source, Stored, dataset_folder

__all__ = ["DATASET", "MODEL", "Initialized", "Initializer", "Source", "Stored", "dataset_folder"]
