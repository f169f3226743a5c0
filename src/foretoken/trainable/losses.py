"""Training losses: how far a drafter's distribution is from the target's, at each place.

Each divergence takes the drafter's logits [..., V] and the target's [..., V] and returns one number
a place [...]. Sources: forward and reverse KL, Jensen-Shannon and total variation, Zhou et
al. 2024 (DistillSpec) section 3; the chance of acceptance is one minus the total variation,
Leviathan et al. 2023 section 3.2. They are computed in float32, in float64 for float64 logits.

Legend: P places, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError, unknown

Divergence = Callable[[Tensor, Tensor], Tensor]
"""(drafter's logits [..., V], target's logits [..., V]) -> [...]"""

NLL = "nll"
"""The name of the objective that does not read the target's logits: -log of the probability of the
text's token."""

_TINY = 1e-30  # in place of a sum that is 0


def _log(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1, dtype=_wide(logits))


def _wide(logits: Tensor) -> torch.dtype:
    return logits.dtype if logits.dtype == torch.float64 else torch.float32


def _at(temperature: float, logits: Tensor) -> Tensor:
    """The distribution that is sampled from."""
    return (logits.to(_wide(logits)) / temperature).softmax(-1)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of log-probabilities; a token without mass under p adds nothing."""
    gap = torch.where(p.isneginf(), 0.0, p - q)
    return (p.exp() * gap).sum(-1)


def kl_div(drafter: Tensor, target: Tensor) -> Tensor:
    """KL(target || drafter): forward KL, soft-label cross-entropy less the target's entropy.

    Written as two products: `_kl`'s difference of two log-distributions would be one more pass over
    the drafter's logits, forward and backward.
    """
    log_p = _log(target)
    log_q = _log(drafter.to(log_p.dtype))
    p, empty = log_p.exp(), log_p.isneginf()
    if empty.any():  # a token without mass adds nothing, whatever the drafter gives it
        log_p, log_q = log_p.masked_fill(empty, 0.0), torch.where(empty, 0.0, log_q)
    cross_entropy: Tensor = -torch.linalg.vecdot(p, log_q)
    return (p * log_p).sum(-1) + cross_entropy


def rkl(drafter: Tensor, target: Tensor) -> Tensor:
    """KL(drafter || target): reverse KL."""
    return _kl(_log(drafter), _log(target))


def jsd(drafter: Tensor, target: Tensor, beta: float = 0.5) -> Tensor:
    """Jensen-Shannon divergence, generalised: beta · KL(target || m) + (1 - beta) · KL(drafter ||
    m) for the mixture m of beta of the target and the rest of the drafter (Zhou et al. 2024,
    DistillSpec, appendix A.1; Agarwal et al. 2024, GKD, section 2). Near 0 it is like forward KL,
    near 1 like reverse KL."""
    p, q = _log(target), _log(drafter)
    middle = torch.logaddexp(p + math.log(beta), q + math.log1p(-beta))
    return beta * _kl(p, middle) + (1 - beta) * _kl(q, middle)


def tv(drafter: Tensor, target: Tensor) -> Tensor:
    """Total variation: half the summed difference, which is the chance of a rejection."""
    return (_log(target).exp() - _log(drafter).exp()).abs().sum(-1) / 2


def acceptance(drafter: Tensor, target: Tensor) -> Tensor:
    """The chance that speculative sampling accepts a token drawn from the drafter's
    distribution."""
    return torch.minimum(_log(target), _log(drafter)).exp().sum(-1)


def drawn_chance(drafter: Tensor, target: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """[...] the chance that a token drawn from the drafter's logits is accepted and is the text's,
    tokens [...], which was drawn from the target's: min(1, q / p)."""
    q, p = (_log(logits.to(_wide(logits)) / temperature) for logits in (drafter, target))
    return (q - p).gather(-1, tokens[..., None])[..., 0].clamp(max=0).exp()


def sibling_chances(
    drafter: Tensor,
    target: Tensor,
    tokens: Tensor,
    temperature: float,
    count: int,
    random: torch.Generator,
) -> Tensor:
    """[..., count] the same for children that are drawn one after the other without replacement:
    the chance that each is the first to be accepted, and is the text's token.

    Recursive rejection (`foretoken.verify.multi_candidate`): what is rejected changes the chances
    of those after it, so that it is drawn, by `random`, and the second and later ones are right on
    average.
    """
    left, residual = (_at(temperature, logits) for logits in (drafter, target))
    own = tokens[..., None]
    written, reached = residual.gather(-1, own).clamp(min=_TINY), torch.ones_like(residual[..., :1])
    chances = []
    for number in range(count):
        proposal = left / left.sum(-1, keepdim=True).clamp(min=_TINY)
        paid = torch.minimum(residual, proposal).gather(-1, own)
        chances.append(reached * paid / written)
        if number + 1 < count:
            rejected, residual = (proposal - residual).clamp(min=0), residual - proposal
            chance = rejected.sum(-1, keepdim=True)
            reached = reached * chance
            rejected = torch.where(chance > 0, rejected, 1.0)  # something to draw from
            drawn = torch.multinomial(rejected.flatten(0, -2), 1, generator=random)
            left = left.scatter(-1, drawn.view(own.shape), 0.0)
            residual = residual.clamp(min=0)
            residual = residual / residual.sum(-1, keepdim=True).clamp(min=_TINY)
    return torch.cat(chances, -1)


def chances_in_turn(
    drafters: Seq[Tensor], target: Tensor, tokens: Tensor, temperature: float
) -> Tensor:
    """[..., K] the same for children of which each of K drafters has drawn one from its own logits:
    what is rejected changes nothing for those after it."""
    residual, own = _at(temperature, target), tokens[..., None]
    written, reached = residual.gather(-1, own).clamp(min=_TINY), torch.ones_like(residual[..., :1])
    chances = []
    for logits in drafters:
        proposal = _at(temperature, logits)
        chances.append(reached * torch.minimum(residual, proposal).gather(-1, own) / written)
        residual = (residual - proposal).clamp(min=0)
        owed = residual.sum(-1, keepdim=True)
        reached, residual = reached * owed, residual / owed.clamp(min=_TINY)
    return torch.cat(chances, -1)


def nla(drafter: Tensor, target: Tensor) -> Tensor:
    """-log of the chance of acceptance."""
    return -acceptance(drafter, target).clamp(min=1e-12).log()


def ce(drafter: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy to the target's likeliest token."""
    return nll(drafter, target.argmax(-1))


def nll(drafter: Tensor, tokens: Tensor) -> Tensor:
    """Cross-entropy [...] of logits [..., V] to tokens of that shape, or one that broadcasts."""
    return -_log(drafter).gather(-1, tokens.expand(drafter.shape[:-1])[..., None])[..., 0]


FEATURE = "feature"
"""The name of smooth L1 to the target's next state, for drafters that predict it; not a divergence
of logits, so it adds nothing here."""

DIVERGENCES: dict[str, Divergence] = {
    "kl_div": kl_div,
    "rkl": rkl,
    "jsd": jsd,
    "tv": tv,
    "nla": nla,
    "ce": ce,
}


def divergence(name: str) -> Divergence | None:
    """The divergence of a name; "jsd@0.1" has a beta. None where there is none of that name.
    Raises `ForetokenError` for a beta outside of 0 to 1."""
    known, _, beta = name.partition("@")
    if not beta or known != "jsd":
        return DIVERGENCES.get(name)
    try:
        share = float(beta)
    except ValueError:
        return None
    if not 0 < share < 1:
        raise ForetokenError(f"The beta of {name!r} must be above 0 and below 1.")
    return partial(jsd, beta=share)


@dataclass(frozen=True)
class Objective:
    """A weighted sum of divergences, by name, and of "nll" to the text's own tokens.

    decay: factor of the loss from one drafted place to the next (Medusa and EAGLE-3 have 0.8; see
    `exponential`). dynamic: if not 0, each place is also weighted by the chance that a draft
    reaches it, to this power (see `chance_to_reach`).
    """

    weights: Mapping[str, float] = field(default_factory=lambda: {NLL: 1.0})
    decay: float = 0.8
    dynamic: float = 0.0

    def __post_init__(self) -> None:
        for name in self.weights:
            if name not in (NLL, FEATURE) and divergence(name) is None:
                raise unknown("objective", name, [*DIVERGENCES, "jsd@BETA", NLL, FEATURE])
        if not self.weights or min(self.weights.values()) < 0 or not any(self.weights.values()):
            raise ForetokenError(
                f"The objective is {dict(self.weights)}; give weights that are not negative, and "
                "at least one above 0."
            )
        if not 0 < self.decay <= 1:
            raise ForetokenError(f"decay is {self.decay}; it must be above 0 and at most 1.")
        if self.dynamic < 0:
            raise ForetokenError(f"dynamic is {self.dynamic}; it can't be negative.")

    @property
    def reads_target(self) -> bool:
        """Whether the target's logits are needed."""
        return any(self.weights[name] for name in self.weights if name not in (NLL, FEATURE))

    def probability(self, drafter: Tensor, tokens: Tensor) -> Tensor:
        """[...] the probability that logits [..., V] give the text's tokens [...]."""
        return (-nll(drafter, tokens)).exp()

    def check(self) -> None:
        """Raises `ForetokenError` where none of its losses is of logits."""
        if not any(
            name == NLL or (weight and name != FEATURE) for name, weight in self.weights.items()
        ):
            raise ForetokenError(
                f"The objective is {dict(self.weights)}; give a weight to one of the losses of "
                "logits too."
            )

    def __call__(self, drafter: Tensor, target: Tensor | None, tokens: Tensor) -> Tensor:
        """[...] for logits [..., V] and the text's tokens [...]; target: None where not read."""
        self.check()
        parts = []
        for name, weight in self.weights.items():
            if name == NLL:
                parts.append(weight * nll(drafter, tokens))
            elif weight and name != FEATURE:
                measure = divergence(name)
                assert target is not None and measure is not None
                parts.append(weight * measure(drafter, target))
        return torch.stack(parts).sum(0)


def exponential(gamma: float) -> float:
    """The decay of the weights exp(-i / gamma), which speculators calls gamma."""
    if gamma <= 0:
        raise ForetokenError(f"gamma is {gamma}; it must be above 0.")
    return math.exp(-1 / gamma)


def chance_to_reach(chances: Tensor) -> Tensor:
    """[..., N] the chance that a draft reaches each place, from the chances [..., N] that each
    place is right: the product over the places before it."""
    first = torch.ones_like(chances[..., :1])
    return torch.cat((first, chances[..., :-1]), -1).cumprod(-1)


Measure = Callable[..., Tensor]
"""(places as a slice, then that slice of each input) -> the summed loss of these places."""


def chunked(
    measure: Measure, inputs: Seq[Tensor], parameters: Seq[Tensor] = (), chunk: int = 256
) -> Tensor:
    """The sum of `measure` over all places of the inputs [P, ...], `chunk` places at a time.

    Logits [P, V] never exist whole, and nothing is computed twice: each chunk's gradients are
    computed with its loss. parameters: the other trained tensors that `measure` uses.
    """
    total: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]
        measure, chunk, len(inputs), *inputs, *parameters
    )
    return total


_RAISED = 2.0**12
"""What gradients are multiplied by on their way through a head; a power of two changes no digit of
float32's and bfloat16's."""


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, measure: Measure, chunk: int, count: int, *tensors: Tensor) -> Tensor:
        inputs, parameters = tensors[:count], tensors[count:]
        wanted = [i for i, need in enumerate(ctx.needs_input_grad[3:]) if need]
        grads = {i: torch.zeros_like(tensors[i]) for i in wanted}
        total = inputs[0].new_zeros((), dtype=torch.promote_types(inputs[0].dtype, torch.float32))
        for start in range(0, len(inputs[0]), chunk):
            at = slice(start, start + chunk)
            parts = [x[at].detach().requires_grad_(i in grads) for i, x in enumerate(inputs)]
            with torch.set_grad_enabled(bool(wanted)):
                loss = measure(at, *parts)
            total += loss.detach()
            leaves = [parts[i] if i < count else parameters[i - count] for i in wanted]
            if leaves:
                # Through a float16 head the gradients of thousands of places would be 0.
                above = torch.full_like(loss, _RAISED)
                gradients = torch.autograd.grad(loss, leaves, above, allow_unused=True)
                for i, grad in zip(wanted, gradients, strict=True):
                    if grad is not None:
                        sums = grads[i][at] if i < count else grads[i]
                        sums.add_(grad, alpha=1 / _RAISED)
        ctx.grads = [grads.get(i) for i in range(len(tensors))]
        return total

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> Any:
        scale = above[0]
        grads, ctx.grads = ctx.grads, None
        return None, None, None, *(g if g is None else g * scale.to(g.dtype) for g in grads)
