"""The options that only `foretoken bench` has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from foretoken.cli import measuring
from foretoken.cli.options import in_panel

_WHAT, _HOW, _WHERE = "What is measured", "How it is measured", "Where and by whom"


@dataclass(frozen=True)
class BenchOptions:
    """What is measured, how, where and by whom, as the command line gives it."""

    out: Annotated[
        Path,
        in_panel(_WHERE, "--out", "-o", help="The folder for results; one begun is resumed."),
    ] = Path("foretoken-bench")
    suite: Annotated[
        str, in_panel(_WHAT, "--suite", help="Its name, a file of prompts, or a description.")
    ] = "bundled"
    tasks: Annotated[str | None, in_panel(_WHAT, "--tasks", help="Only these tasks, by comma.")] = (
        None
    )
    limit: Annotated[
        int | None, in_panel(_WHAT, "--limit", min=1, help="Most prompts of a task.")
    ] = None
    methods: Annotated[
        str,
        in_panel(
            _WHAT,
            "--methods",
            help="By comma, e.g. 'sps,pld+sps,pld|sps,auto:pld+sps' (in quotes for the shell); all "
            "is every one that can be built.",
        ),
    ] = "all"
    method_config: Annotated[
        str | None,
        in_panel(
            _WHAT,
            "--method-config",
            help='Your own, as JSON or a YAML file: {"label": {"method": "sps", …}}.',
        ),
    ] = None
    model: Annotated[
        str,
        in_panel(_WHAT, "--model", "-m", help="Folders, hub ids or bundled names, by comma."),
    ] = "mini"
    draft_model: Annotated[
        str | None,
        in_panel(
            _WHAT,
            "--draft-model",
            help="One for all models, or one for each; and METHOD=MODEL for single methods or "
            "parts.",
        ),
    ] = None
    num_speculative_tokens: Annotated[
        int | None, in_panel(_WHAT, "--num-speculative-tokens", help="Tokens drafted in a step.")
    ] = None
    inflate: Annotated[
        str, in_panel(_WHAT, "--inflate", help="Shapes to blow the models' cost up to, by comma.")
    ] = measuring.AS_IT_IS
    dtypes: Annotated[str, in_panel(_WHAT, "--dtypes", help="Precisions, by comma.")] = "auto"
    temperatures: Annotated[
        str, in_panel(_HOW, "--temperatures", "--temperature", help="By comma; 0 is greedy.")
    ] = "0,1"
    batch_sizes: Annotated[
        str, in_panel(_HOW, "--batch-sizes", "--batch", help="Prompts served together, by comma.")
    ] = "1"
    max_tokens: Annotated[
        int, in_panel(_HOW, "--max-tokens", min=1, help="Most tokens of an answer.")
    ] = 1024
    repeats: Annotated[
        int,
        in_panel(
            _HOW, "--repeats", min=1, help="Answer each prompt this often; the median counts."
        ),
    ] = 1
    seed: Annotated[int, in_panel(_HOW, "--seed", help="Of everything random.")] = 0
    own_history: Annotated[
        bool, in_panel(_HOW, "--own-history", help="Each method continues its own answers.")
    ] = False
    warm: Annotated[
        bool, in_panel(_HOW, "--warm", help="Drafters keep what they learn from prompt to prompt.")
    ] = False
    template: Annotated[
        str | None,
        in_panel(
            _HOW, "--template", help="vicuna: ask as Spec-Bench does, whatever the target's own."
        ),
    ] = None
    keep_loops: Annotated[
        bool, in_panel(_HOW, "--keep-loops", help="Count prompts whose plain answer loops too.")
    ] = False
    shard: Annotated[
        str | None, in_panel(_WHERE, "--shard", help="i/n: only this part of the prompts.")
    ] = None
    ray: Annotated[
        int | None, in_panel(_WHERE, "--ray", min=1, help="So many shards on a Ray cluster.")
    ] = None
    ray_address: Annotated[
        str | None, in_panel(_WHERE, "--ray-address", help="Its head's host:port; else here.")
    ] = None
    engine: Annotated[
        str, in_panel(_WHERE, "--engine", help="foretoken, or openai for a server like OpenAI's.")
    ] = "foretoken"
    base_url: Annotated[
        str | None,
        in_panel(_WHERE, "--base-url", help="The server, e.g. http://localhost:8000/v1."),
    ] = None
    baseline_url: Annotated[
        str | None, in_panel(_WHERE, "--baseline-url", help="The same model without speculation.")
    ] = None
    tokenizer: Annotated[
        str | None, in_panel(_WHERE, "--tokenizer", help="Of a server that doesn't count tokens.")
    ] = None

    @property
    def remote(self) -> bool:
        """Whether a remote server is measured."""
        return self.engine == "openai"
