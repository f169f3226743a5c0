"""What is trained, stage by stage, for each kind of machine.

A stage has a budget in minutes of training, not in steps, so the learning rate reaches zero when
the time is up however fast the machine is. A stage whose shape is larger than the one before it
begins by growing that model (grow.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from model import Config


@dataclass(frozen=True)
class Stage:
    name: str
    config: Config
    mix: str
    length: int  # tokens in a row
    rows: int  # rows in a batch
    minutes: float
    matrix_lr: float = 0.02  # Muon
    vector_lr: float = 3e-3  # AdamW: embedding and norms
    warm: float = 0.03  # fraction of the stage
    decay_from: float = 1.0  # fraction of the stage; 1 keeps the rate to the end
    peak: float = 1.0  # factor of both rates where the decay begins
    floor: float = 0.0  # and where the stage ends


SEED = Config(hidden=256, layers=4, heads=4, kv_heads=2, intermediate=768)
# Growing scales the epsilon of the norms with 1 / width (grow.py).
MINI = Config(288, layers=7, heads=6, kv_heads=3, intermediate=768, eps=1e-6 * 256 / 288)
# A larger base of the rotary frequencies for long rows: without a step of training, losses at
# places 512 to 2,560 fall from 3.8 to 2.5, while those before 512 rise by 0.05.
FAR = 100_000.0
MINI_LONG = replace(MINI, theta=FAR)
DRAFT = Config(88, layers=2, heads=2, kv_heads=1, intermediate=224, theta=FAR)

CPU = (
    Stage("seed", SEED, "simple", 512, 16, minutes=22),
    Stage("mini", MINI, "everything", 512, 16, minutes=46, decay_from=0.75, floor=0.3),
    Stage(
        "more", MINI_LONG, "everything", 512, 16, minutes=42, peak=0.6, decay_from=0.3, floor=0.2
    ),
    Stage("long", MINI_LONG, "long", 2560, 4, minutes=6, peak=0.2),
    Stage("settle", MINI_LONG, "long", 512, 16, minutes=12, warm=0.0, decay_from=0.0, peak=0.2),
)

BIG = Config(hidden=384, layers=8, heads=6, kv_heads=3, intermediate=1152)  # 17.3 M parameters
BIG_LONG = replace(BIG, theta=FAR)
BIG_DRAFT = Config(128, layers=3, heads=2, kv_heads=1, intermediate=320, theta=FAR)
GPU = (
    Stage("mini", BIG, "everything", 512, 128, minutes=10, warm=0.01, decay_from=0.8, floor=0.3),
    Stage("long", BIG_LONG, "long", 2560, 24, minutes=5, decay_from=0.0, peak=0.3),
)
PRESETS = {"cpu": CPU, "gpu": GPU}
DRAFTS = {"cpu": DRAFT, "gpu": BIG_DRAFT}
