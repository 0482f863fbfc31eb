"""Print what `evaluate` returns in this rank: `torchrun … evaluate_on_ranks.py MODEL`."""

from __future__ import annotations

import json
import sys

from stoker.lab import LoRATrainConfig, LoRATrainer, evaluate


def main() -> None:
    """Evaluate rows whose number no number of ranks divides."""
    rows = [{"prompt": f"{a}+{b}=", "completion": str(a + b) * (1 + a)} for a in range(7) for b in range(3)]
    found = evaluate(LoRATrainer(sys.argv[1], LoRATrainConfig()), rows)
    # The text and its end at once: the ranks share one pipe.
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
