"""The divergence that the drafter learns by."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def test_chunked_divergence_is_kl() -> None:
    """Loss and gradients are those of torch's KL divergence, with either kernel."""
    import distill

    hidden = torch.randn(9, 8, requires_grad=True)
    head = torch.randn(30, 8, requires_grad=True)
    t_hidden, t_head, weight = torch.randn(9, 6), torch.randn(30, 6), torch.rand(9)
    p = (t_hidden @ t_head.t()).log_softmax(-1)
    q = (hidden @ head.t()).log_softmax(-1)
    wanted = (F.kl_div(q, p, log_target=True, reduction="none").sum(-1) * weight).sum()
    grads = torch.autograd.grad(wanted, (hidden, head))
    teacher = t_hidden @ t_head.t()
    everything = torch.arange(30).expand(9, 30)
    for kernel, known in (
        (distill._kl_kernel, [lambda at: (teacher[at],)]),
        (distill._best_kernel, [everything, p.exp()]),
    ):
        loss = distill._Chunked.apply(kernel, hidden, head, weight, *known)
        torch.testing.assert_close(loss, wanted)
        torch.testing.assert_close(torch.autograd.grad(loss, (hidden, head)), grads)
