"""A published checkpoint's tensors go into a module; the target's own must be the target's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foreign import FOREIGN, LAYERS, VOCAB, WIDTH, check_refused, drafts, made, write
from foretoken.errors import ForetokenError
from foretoken.testing import Pair, native
from stored_models import original


@pytest.mark.parametrize("name", ["embedding", "size of it", "head"])
def test_another_embedding_or_head_is_refused(name: str, small: Pair, tmp_path: Path) -> None:
    """One sentence says how far it is from the target's."""
    check_refused(name, small, tmp_path)


@pytest.mark.parametrize(("name", "served"), [("eagle3", True), ("eagle", False)])
def test_an_embedding_that_the_target_scales(name: str, served: bool, tmp_path: Path) -> None:
    """Gemma's drafters have it as its file has it, and not as its layers read it: the same to one
    that norms it first, and another to one that doesn't."""
    numbers = {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": LAYERS}
    model = original("gemma3_text", **numbers).double()
    pair = Pair(native(model), native(model), model)
    foreign, module = FOREIGN[name], made(FOREIGN[name], pair)
    theirs = write(tmp_path / "theirs", foreign, module, pair)
    expected = drafts(foreign.method, theirs, pair.target)
    file = theirs / foreign.file
    tensors = torch.load(file)
    tensors["embed_tokens.weight"] = model.get_input_embeddings().weight.detach().clone()
    torch.save(tensors, file)
    if served:
        assert drafts(foreign.method, theirs, pair.target) == expected
    else:
        with pytest.raises(ForetokenError, match="away from this target's"):
            drafts(foreign.method, theirs, pair.target)
