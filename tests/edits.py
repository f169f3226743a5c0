"""A model that answers an edit with a given text."""

from __future__ import annotations

import torch

from foretoken import LLM
from foretoken.apps.edit import messages
from foretoken.testing import ByteTokenizer, TableModel

FILE = "def f(r):\n    return 3 * r * r\n\n\ndef g(r):\n    return f(r) + 1\n"
ASKED = "Rename f to area."
_VOCAB, _END = 97, 96


def scripted(answer: str, text: str = FILE) -> LLM:
    """Answers so when it is `ASKED` to change `text`: what it writes follows from the place."""
    tokenizer = ByteTokenizer(_VOCAB)
    conversation = tokenizer.apply_chat_template(messages(text, ASKED), add_generation_prompt=True)
    ids = torch.tensor([*tokenizer.encode(answer), _END])
    table = torch.zeros(len(ids), _VOCAB, _VOCAB, dtype=torch.float64)
    places = (len(conversation) - 1 + torch.arange(len(ids))) % len(ids)
    table[places, :, ids] = 50
    model = TableModel(table, window=1, max_length=1024)
    model.eos_ids = frozenset({_END})
    return LLM(model, tokenizer=tokenizer, max_num_seqs=1)
