"""Options of `foretoken serve` for several replicas, on Ray Serve."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from foretoken.cli import options
from foretoken.cli.output import note
from foretoken.cli.serve_options import base_url
from foretoken.errors import ForetokenError

if TYPE_CHECKING:
    from foretoken.llm import LLM
    from foretoken.serve.settings import ServerSettings

_PANEL = "Replicas"


@dataclass(frozen=True)
class ReplicaOptions:
    """How many servers of a model there are."""

    replicas: Annotated[
        int | None,
        options.in_panel(_PANEL, "--replicas", min=1, help="So many models, on a Ray cluster."),
    ] = None
    max_replicas: Annotated[
        int | None,
        options.in_panel(_PANEL, "--max-replicas", min=1, help="Up to so many under load."),
    ] = None
    target_ongoing_requests: Annotated[
        int | None,
        options.in_panel(
            _PANEL,
            "--target-ongoing-requests",
            min=1,
            help="On each, above which one is added; default --max-num-seqs.",
        ),
    ] = None
    ray_address: Annotated[
        str | None,
        options.in_panel(
            _PANEL, "--ray-address", help="The cluster's head's host:port; else here."
        ),
    ] = None

    def check(self, seed: int | None, logs_requests: bool = False) -> None:
        """Raise `ForetokenError` for options that don't go together."""
        alone = {
            "--max-replicas": self.max_replicas,
            "--target-ongoing-requests": self.target_ongoing_requests,
            "--ray-address": self.ray_address,
        }
        given = next((name for name, value in alone.items() if value is not None), None)
        if self.replicas is None:
            if given is not None:
                raise ForetokenError(f"{given} does nothing alone; add --replicas.")
            return
        if seed is not None:
            raise ForetokenError(
                "--seed counts the requests of one server; leave it out with --replicas, and give "
                "requests a seed each."
            )
        if logs_requests:
            raise ForetokenError(
                "--enable-log-requests is for one server; leave it out with --replicas, whose "
                "requests are in Ray's own logs."
            )
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ForetokenError(
                f"--max-replicas {self.max_replicas} is less than --replicas {self.replicas}; "
                "give at least as many."
            )
        if self.target_ongoing_requests is not None and self.max_replicas is None:
            raise ForetokenError("--target-ongoing-requests does nothing without --max-replicas.")

    def serve(
        self,
        load: Callable[[int], Callable[[], LLM]],
        settings: ServerSettings,
        *,
        slots: int,
        address: dict[str, Any],
        patience: int,
    ) -> None:
        """Serve until SIGINT or SIGTERM.

        load: makes what loads a replica's model, with so many threads; slots: sequences that a
        replica serves at a time; address: host, port and Ray's other HTTP options; patience: the
        seconds that running answers get at the end.
        """
        from foretoken.serve.replicas import run

        assert self.replicas is not None
        scale = run.Scale(
            least=self.replicas,
            most=self.max_replicas or self.replicas,
            target=self.target_ongoing_requests or slots,
            imbalance=max(1, slots // 2),
        )
        with run.joined(self.ray_address, scale.most) as share:
            make = run.InFolder(os.getcwd(), load(share.threads))
            run.start(make, settings, scale, share, address, patience)
            note(f"{settings.names[0]} at {base_url(address)}")
            note(f"{self._many(scale.most)}, {share.cpus:g} of the cluster's CPUs each")
            run.until_told()
            run.drain(patience)

    def _many(self, most: int) -> str:
        up_to = "" if most == self.replicas else f" to {most}"
        return f"{self.replicas}{up_to} replicas"
