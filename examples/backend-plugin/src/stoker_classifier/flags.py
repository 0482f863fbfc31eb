"""The trainer's flags, the one place that knows them: the runner checks against them, the trainer parses them."""

from __future__ import annotations

from stoker.plugin import Flag, FlagTable

_FLAGS = (
    Flag("model_name_or_path", "str", help="Folder or Hub id of the model to start from."),
    Flag("dataset_name", "str", help="Folder or Hub id of the data."),
    Flag("dataset_train_split", "str", default="train", help="Part of the data to train on."),
    Flag("text_column", "str", default="text", help="Column with the text."),
    Flag("label_column", "str", default="label", help="Column with the label, of any type."),
    Flag("max_length", "int", default="256", help="Tokens after which a text is cut."),
    Flag("output_dir", "str", help="Folder of checkpoints and the model."),
    Flag("learning_rate", "float", default="2e-5", help="Learning rate at its peak."),
    Flag("num_train_epochs", "float", default="3", help="Passes over the data."),
    Flag("max_steps", "int", default="-1", help="Steps to train, if over 0; wins over the epochs."),
    Flag("per_device_train_batch_size", "int", default="16", help="Texts in each process and step."),
    Flag("logging_steps", "int", default="10", help="Steps between two lines of the log."),
    Flag("save_steps", "int", default="500", help="Steps between two checkpoints."),
    Flag("save_total_limit", "int", default="3", help="Checkpoints to keep, 2 or more."),
    Flag("seed", "int", default="42", help="Seed of order and new weights."),
    Flag("use_cpu", "bool", default="false", help="Train on the CPU."),
)
TABLE = FlagTable(
    trainer="stoker-classifier 0.1.0",
    method="classify",
    flags={flag.name: flag for flag in _FLAGS},
    reserved={"resume_from_checkpoint": "leave it out and set STOKER_RESUME to auto, never or require"},
)
