"""The options that only `foretoken bench` has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from foretoken.cli import measuring
from foretoken.cli.options import in_panel

_WHAT, _HOW, _WHERE = "What is measured", "How it is measured", "Where and by whom"

_Out = Annotated[
    Path,
    in_panel(_WHERE, "--out", "-o", help="The folder for results; one begun is resumed."),
]
_Suite = Annotated[
    str, in_panel(_WHAT, "--suite", help="Its name, a file of prompts, or a description.")
]
_Tasks = Annotated[str | None, in_panel(_WHAT, "--tasks", help="Only these tasks, by comma.")]
_Limit = Annotated[int | None, in_panel(_WHAT, "--limit", min=1, help="Most prompts of a task.")]
_Methods = Annotated[
    str,
    in_panel(
        _WHAT,
        "--methods",
        help="By comma, e.g. 'sps,pld+sps,pld|sps,auto:pld+sps' (in quotes for the shell); all "
        "is every one that can be built.",
    ),
]
_MethodConfig = Annotated[
    str | None,
    in_panel(
        _WHAT,
        "--method-config",
        help='Your own, as JSON or a YAML file: {"label": {"method": "sps", …}}.',
    ),
]
_Models = Annotated[
    str,
    in_panel(_WHAT, "--model", "-m", help="Folders, hub ids or bundled names, by comma."),
]
_DraftModels = Annotated[
    str | None,
    in_panel(
        _WHAT,
        "--draft-model",
        help="One for all models, or one for each; and METHOD=MODEL for single methods or parts.",
    ),
]
_DraftLength = Annotated[
    int | None, in_panel(_WHAT, "--num-speculative-tokens", help="Tokens drafted in a step.")
]
_Inflate = Annotated[
    str, in_panel(_WHAT, "--inflate", help="Shapes to blow the models' cost up to, by comma.")
]
_Dtypes = Annotated[str, in_panel(_WHAT, "--dtypes", help="Precisions, by comma.")]
_Temperatures = Annotated[
    str, in_panel(_HOW, "--temperatures", "--temperature", help="By comma; 0 is greedy.")
]
_BatchSizes = Annotated[
    str, in_panel(_HOW, "--batch-sizes", "--batch", help="Prompts served together, by comma.")
]
_MaxTokens = Annotated[int, in_panel(_HOW, "--max-tokens", min=1, help="Most tokens of an answer.")]
_Repeats = Annotated[
    int,
    in_panel(_HOW, "--repeats", min=1, help="Answer each prompt this often; the median counts."),
]
_Seed = Annotated[int, in_panel(_HOW, "--seed", help="Of everything random.")]
_OwnHistory = Annotated[
    bool, in_panel(_HOW, "--own-history", help="Each method continues its own answers.")
]
_Warm = Annotated[
    bool, in_panel(_HOW, "--warm", help="Drafters keep what they learn from prompt to prompt.")
]
_Template = Annotated[
    str | None,
    in_panel(_HOW, "--template", help="vicuna: ask as Spec-Bench does, whatever the target's own."),
]
_KeepLoops = Annotated[
    bool, in_panel(_HOW, "--keep-loops", help="Count prompts whose plain answer loops too.")
]
_Shard = Annotated[
    str | None, in_panel(_WHERE, "--shard", help="i/n: only this part of the prompts.")
]
_Ray = Annotated[
    int | None, in_panel(_WHERE, "--ray", min=1, help="So many shards on a Ray cluster.")
]
_RayAddress = Annotated[
    str | None, in_panel(_WHERE, "--ray-address", help="Its head's host:port; else here.")
]
_Engine = Annotated[
    str, in_panel(_WHERE, "--engine", help="foretoken, or openai for a server like OpenAI's.")
]
_BaseUrl = Annotated[
    str | None,
    in_panel(_WHERE, "--base-url", help="The server, e.g. http://localhost:8000/v1."),
]
_BaselineUrl = Annotated[
    str | None, in_panel(_WHERE, "--baseline-url", help="The same model without speculation.")
]
_ServersTokenizer = Annotated[
    str | None, in_panel(_WHERE, "--tokenizer", help="Of a server that doesn't count tokens.")
]


@dataclass(frozen=True)
class BenchOptions:
    """What is measured, how, where and by whom, as the command line gives it."""

    out: _Out = Path("foretoken-bench")
    suite: _Suite = "bundled"
    tasks: _Tasks = None
    limit: _Limit = None
    methods: _Methods = "all"
    method_config: _MethodConfig = None
    model: _Models = "mini"
    draft_model: _DraftModels = None
    num_speculative_tokens: _DraftLength = None
    inflate: _Inflate = measuring.AS_IT_IS
    dtypes: _Dtypes = "auto"
    temperatures: _Temperatures = "0,1"
    batch_sizes: _BatchSizes = "1"
    max_tokens: _MaxTokens = 1024
    repeats: _Repeats = 1
    seed: _Seed = 0
    own_history: _OwnHistory = False
    warm: _Warm = False
    template: _Template = None
    keep_loops: _KeepLoops = False
    shard: _Shard = None
    ray: _Ray = None
    ray_address: _RayAddress = None
    engine: _Engine = "foretoken"
    base_url: _BaseUrl = None
    baseline_url: _BaselineUrl = None
    tokenizer: _ServersTokenizer = None

    @property
    def remote(self) -> bool:
        """Whether a remote server is measured."""
        return self.engine == "openai"
