"""How a node spends its grace period, in seconds. A stop saves a checkpoint in what these parts leave."""

from __future__ import annotations

KILL_SECONDS = 5
"""From SIGTERM to SIGKILL for its processes, and again until they are gone."""

RECORD_SECONDS = 5
"""To record how the run ended."""

END_SECONDS = 2 * KILL_SECONDS + RECORD_SECONDS
"""All that is not for the checkpoint."""
