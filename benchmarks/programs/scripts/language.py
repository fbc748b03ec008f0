"""A small language model with accumulated gradients, a schedule and checkpoints.

Called with the number of steps.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

STEPS, LENGTH, WIDTH, WORDS = int(sys.argv[1]), 64, 64, 256
layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True)
parts = {
    "words": nn.Embedding(WORDS, WIDTH),
    "layers": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
    "head": nn.Linear(WIDTH, WORDS),
}
model = nn.ModuleDict(parts)
mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=1000)
text = torch.randint(0, WORDS, (100_000,))


def loss() -> torch.Tensor:
    """Return the loss of a random batch."""
    begins = torch.randint(0, len(text) - LENGTH - 1, (4,))
    inputs = torch.stack([text[one : one + LENGTH] for one in begins])
    following = torch.stack([text[one + 1 : one + LENGTH + 1] for one in begins])
    words = model["head"](model["layers"](model["words"](inputs), mask=mask, is_causal=True))
    return nn.functional.cross_entropy(words.flatten(0, 1), following.flatten())


with tempfile.TemporaryDirectory() as folder:
    for step in range(STEPS):
        for _ in range(2):
            (loss() / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 250 == 249:
            torch.save(model.state_dict(), Path(folder) / "checkpoint.pt")
