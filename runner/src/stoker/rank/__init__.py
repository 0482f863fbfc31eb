"""What happens in one training process, whatever the framework."""
