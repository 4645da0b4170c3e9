# SPDX-License-Identifier: Apache-2.0
"""Writes `smollm2-greedy.json`: greedy ids of SmolLM2-135M-Instruct by transformers in fp32, the independent reference.

Needs torch, transformers and accelerate beside the package's own requirements; run it only when a case is added:
`python tests/golden/make_golden.py`. `min_margin` is the smallest distance between the best and the second logit of
any step: a case below 1e-3 would test rounding, not the runtime, and is refused.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

from llm_models.checkpoints import find_smollm2, load_checkpoint
from llm_models.tokenizer import Tokenizer

OUTPUT = Path(__file__).with_name("smollm2-greedy.json")
SMALLEST_MARGIN = 1e-3
LONG_TEXT = " ".join(
    f"Chapter {number}: the {animal} crossed {number * 7} rivers and counted {number * 13} stones before the rain."
    for number, animal in enumerate(
        ["heron", "fox", "otter", "badger", "crane", "lynx", "hare", "owl", "stoat"] * 5, start=1
    )
)
# name, text, through the chat template, budget
CASES = [
    ("capital", "What is the capital of France?", True, 48),
    ("sea", "Write one sentence about the sea.", True, 48),
    ("colors", "List three primary colors.", True, 48),
    ("hash", "Explain what a hash table is in two sentences.", True, 48),
    ("arithmetic", "What is 12 + 30? Answer with the number only.", True, 24),
    ("accents", "Traduis en anglais : « Où est la bibliothèque, s'il vous plaît ? »", True, 24),
    ("code", "def fibonacci(n):\n    ", False, 40),
    ("story", "Once upon a time, in a village by the sea,", False, 70),
    ("one-token", "The", False, 16),
    ("long", LONG_TEXT + " Which animal came first?", True, 40),
]


def main() -> None:
    path = find_smollm2(verify_digest=True)
    tokenizer = Tokenizer(load_checkpoint(path))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    OUTPUT.write_text(
        "[\n" + ",\n".join(json.dumps(golden_case(model, tokenizer, *case)) for case in CASES) + "\n]\n"
    )


@torch.no_grad()
def golden_case(
    model: Any, tokenizer: Tokenizer, name: str, text: str, chat: bool, budget: int
) -> dict[str, Any]:
    """Greedy continuation of one prompt, until an end id or the budget."""
    prompt_ids = tokenizer.chat_ids([{"role": "user", "content": text}]) if chat else tokenizer.encode(text)
    new_ids: list[int] = []
    margins: list[float] = []
    inputs, cache = torch.tensor([prompt_ids]), None
    while len(new_ids) < budget and not (new_ids and new_ids[-1] in tokenizer.eos_ids):
        output = model(inputs, past_key_values=cache, use_cache=True)
        best = output.logits[0, -1].topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        new_ids.append(int(best.indices[0]))
        inputs, cache = torch.tensor([[new_ids[-1]]]), output.past_key_values
    if min(margins) < SMALLEST_MARGIN:
        raise SystemExit(f"case {name}: margin {min(margins)} is too small to test anything but rounding")
    print(name, len(prompt_ids), len(new_ids), min(margins), repr(tokenizer.decode(new_ids)))
    return {
        "name": name,
        "prompt": text,
        "chat": chat,
        "max_new_tokens": budget,
        "prompt_ids": prompt_ids,
        "new_ids": new_ids,
        "min_margin": min(margins),
    }


if __name__ == "__main__":
    main()
