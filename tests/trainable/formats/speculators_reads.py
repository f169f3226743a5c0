"""Run by the Python of an environment with `speculators`: load a folder, and write its logits.

`python speculators_reads.py FOLDER INPUTS OUTPUTS`: INPUTS holds input_ids [1, T] and hidden_states
[1, T, C · D] as that package's `forward` takes them, and steps; OUTPUTS gets logits [steps, T, V].
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel, SpeculatorModelConfig
from speculators.losses import resolve_loss_config


def main(folder: str, inputs: str, outputs: str) -> None:
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model: Any = SpeculatorModel.from_pretrained(folder, config=config).float().eval()
    given, logits = load_file(inputs), []
    model.lm_head.register_forward_hook(lambda module, args, out: logits.append(out[0].detach()))
    given["document_ids"] = torch.zeros_like(given["input_ids"])
    steps = int(given.pop("steps"))
    with torch.no_grad():
        if steps:
            model(**given, ttt_steps=steps)
        else:  # blocks, whose roots are where loss_mask is
            model(**given, max_anchors=1, loss_config=resolve_loss_config("kl_div", "eager"))
    save_file({"logits": torch.stack(logits).contiguous()}, outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])
