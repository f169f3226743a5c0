"""DFlash 2's module: DFlash's layers with convolutions, and a selector of each place's candidates.

Source: DFlash 2 (Inco AI and z-lab 2026) and its checkpoints' names. Every place of a block keeps
its `selector_top_k` likeliest tokens by the target's head. A candidate's score is its logit and
⟨A[p] ⊙ W h, B[c]⟩, of the token p drafted before it, the place's state h and the candidate c: so a
place's distribution depends on the token before it, though the layers ran once. Training adds to
DFlash's loss the cross-entropy of these scores to the text's token, after the text's own token
before it; where it isn't among the candidates it takes the last one's place, in the loss only. The
selector begins without effect: B is 0.

Legend: B rows, A roots of a row, T places of a text, S block size, N = S - 1 predicted places, D
width, V vocabulary, K candidates, R rank, P predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretoken.access import Access
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.block_layers import BlockLayer, BlockModel, BlockModule
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.head_losses import predictions_loss
from foretoken.trainable.layer import Attend, LayerShape
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.local_convolution import LocalConvolution
from foretoken.trainable.losses import Objective


class ConvolvedLayer(BlockLayer):
    """A layer of DFlash whose attention and feed-forward each have a convolution around them."""

    def __init__(self, shape: LayerShape, size: int, taps: int, group: int) -> None:
        super().__init__(shape)
        self.attention_conv = LocalConvolution(shape.outer, size, taps, group)
        self.mlp_conv = LocalConvolution(shape.outer, size, taps, group)

    def forward(self, x: Tensor, residual: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        x, correction = self.attention_conv.before(x)
        mixed = self.self_attn(x, positions, attend)
        residual = residual + self.attention_conv.after(mixed, correction)
        x, correction = self.mlp_conv.before(self.post_attention_layernorm(residual))
        out: Tensor = residual + self.mlp_conv.after(self.mlp(x), correction)
        return out


class CandidateSelector(nn.Module):
    """Scores of a place's candidates that depend on the token before it. candidates: all tokens
    where there are fewer."""

    def __init__(self, facts: Facts, rank: int, candidates: int) -> None:
        super().__init__()
        if min(rank, candidates) < 1:
            raise ValueError(
                f"selector_rank is {rank} and selector_top_k {candidates}; both must be at least 1"
            )
        self._candidates = min(candidates, facts.vocab_size)
        self.predecessor_codebook = nn.Parameter(0.02 * torch.randn(facts.vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.zeros(facts.vocab_size, rank))
        self.hidden_projection = nn.Linear(facts.hidden_size, rank, bias=False)

    def candidates(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The candidates' own logits and ids [..., K], of logits [..., V]."""
        top = logits.topk(self._candidates, sorted=True)
        return top.values, top.indices

    def scores(self, own: Tensor, ids: Tensor, states: Tensor, before: Tensor) -> Tensor:
        """[..., K] scores of the candidates `ids` with logits `own` [..., K], at places with states
        [..., D], after tokens `before` [...]."""
        after = self.predecessor_codebook[before] * self.hidden_projection(states)
        edges: Tensor = torch.einsum("...r,...kr->...k", after, self.successor_codebook[ids])
        return own + edges


class SelectedModule(BlockModule):
    """DFlash 2's weights. conv_kernel_size, conv_group_size: taps of the convolutions, and channels
    that share a correction (None: 16, or fewer where that doesn't divide the width); selector_rank,
    selector_top_k: of the selector; selector_loss: its loss's weight beside DFlash's, in training;
    the others as `BlockModule` has them."""

    method: ClassVar[str] = "dflash2"

    def __init__(
        self,
        facts: Facts,
        conv_kernel_size: int = 2,
        conv_group_size: int | None = None,
        selector_rank: int = 256,
        selector_top_k: int = 16,
        selector_loss: float = 1.0,
        **rest: Any,
    ) -> None:
        super().__init__(facts, **rest)
        if self.lm_head is not None:
            raise ValueError("a selector's candidates are of the whole vocabulary")
        if conv_group_size is None:
            conv_group_size = math.gcd(16, facts.hidden_size)
        self.shape |= {
            "conv_kernel_size": conv_kernel_size,
            "conv_group_size": conv_group_size,
            "selector_rank": selector_rank,
            "selector_top_k": selector_top_k,
            "selector_loss": selector_loss,
        }
        sizes = (self.block_size, conv_kernel_size, conv_group_size)
        self.layers = nn.ModuleList(ConvolvedLayer(self.layer_shape, *sizes) for _ in self.layers)
        self.candidate_selector = CandidateSelector(facts, selector_rank, selector_top_k)

    def of_vocabulary(self) -> list[Tensor]:
        selector = self.candidate_selector
        books = [selector.predecessor_codebook, selector.successor_codebook]
        return [*super().of_vocabulary(), *books]

    def serving(self, access: Access) -> SelectedModel:
        return SelectedModel(self, access)

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        states, row, token, ahead = self.predictions(lesson)
        goal, before = lesson.tokens[row, token], lesson.tokens[row, token - 1]
        selector, weight = self.candidate_selector, float(self.shape["selector_loss"])

        def of_selector(at: slice, part: Tensor, logits: Tensor) -> Tensor:
            own, ids = selector.candidates(logits)
            there = ids == goal[at, None]
            last = torch.arange(ids.shape[-1], device=ids.device) == ids.shape[-1] - 1
            place = torch.where(there.any(-1, keepdim=True), there, last)  # of the text's token
            ids = torch.where(place, goal[at, None], ids)
            own = torch.where(place, logits.gather(-1, goal[at, None]), own)
            scores = selector.scores(own, ids, part, before[at])
            loss = F.cross_entropy(scores, place.int().argmax(-1), reduction="none")
            return loss * weight

        more = (of_selector, list(selector.parameters()))
        given = states, row, token, ahead, objective
        loss, self.total = predictions_loss(lesson, *given, more=more)
        return loss

    def scores(self, states: Tensor, before: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        return self.selected(states, head(states), before)

    def selected(self, states: Tensor, logits: Tensor, before: Tensor) -> Tensor:
        """[..., V] the logits after tokens `before` [...], at places with these states [..., D] and
        logits of their own [..., V]; -inf but for the candidates."""
        own, ids = self.candidate_selector.candidates(logits)
        scores = self.candidate_selector.scores(own, ids, states, before)
        return scores.new_full(logits.shape, -torch.inf).scatter(-1, ids, scores)

    def transitions(self, states: Tensor, logits: Tensor, roots: Tensor) -> tuple[Tensor, Tensor]:
        """The chance of each candidate after each candidate of the place before, and their ids:
        [B, N, K, K] and [B, N, K], for blocks after roots [B] with states [B, N, D] and logits
        [B, N, V]. At the first place all rows are alike: what stands before it is the root."""
        own, ids = self.candidate_selector.candidates(logits)
        root = roots[:, None, None].expand_as(ids[:, :1])
        before = torch.cat((root, ids[:, :-1]), 1)  # [B, N, K]
        each = (own[:, :, None], ids[:, :, None], states[:, :, None])
        own, ids_after, states = (x.expand(*before.shape, x.shape[-1]) for x in each)
        scores = self.candidate_selector.scores(own, ids_after, states, before)
        return scores.softmax(-1), ids


class SelectedModel(BlockModel):
    """Serves the module: a block in one pass, whose places' distributions follow token by token."""

    _module: SelectedModule

    def root_logits(self, sequences: Seq[Sequence]) -> Tensor:
        self._states = self.block_states(sequences)
        self._logits, self._next = self._access.head(self._states), 0
        roots = torch.tensor([s.tokens[-1] for s in sequences], device=self.device)
        return self.next_logits(sequences, roots)

    def next_logits(self, sequences: Seq[Sequence], tokens: Tensor) -> Tensor:
        """[B, 1, V] logits of the next place, after these tokens [B]."""
        at = self._next
        logits = self._read()
        return self._module.selected(self._states[:, at : at + 1], logits, tokens[:, None])
