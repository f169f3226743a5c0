"""A model that answers an edit with a given text."""

from __future__ import annotations

import torch

from foretoken import LLM
from foretoken.apps.edit import messages
from foretoken.testing import ByteTokenizer, TableModel

FILE = "def f(r):\n    return 3 * r * r\n\n\ndef g(r):\n    return f(r) + 1\n"
ASKED = "Rename f to area."


def scripted(answer: str, text: str = FILE, vocab_size: int = 97) -> LLM:
    """Answers so when it is `ASKED` to change `text`: what it writes follows from the place.

    vocab_size: 97 have printable ASCII and line feeds.
    """
    tokenizer, end = ByteTokenizer(vocab_size), vocab_size - 1
    conversation = tokenizer.apply_chat_template(messages(text, ASKED), add_generation_prompt=True)
    ids = torch.tensor([*tokenizer.encode(answer), end])
    table = torch.zeros(len(ids), vocab_size, vocab_size, dtype=torch.float64)
    places = (len(conversation) - 1 + torch.arange(len(ids))) % len(ids)
    table[places, :, ids] = 50
    model = TableModel(table, window=1, max_length=1024)
    model.eos_ids = frozenset({end})
    return LLM(model, tokenizer=tokenizer, max_num_seqs=1)
