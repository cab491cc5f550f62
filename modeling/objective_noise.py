"""DCLR's noise-based negatives (Zhou et al., 2022, "Debiased Contrastive Learning of Unsupervised Sentence
Representations", §4.1).

Shape suffixes: B sentences of this process, K keys of all processes, Q noise vectors, H hidden size.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .distributed import from_first_process, gather_rows, sum_over_processes
from .losses import cosine_logits
from .objectives import ContrastModifier, Encode, Negatives, Views
from .settings import ObjectiveConfig, Unread, check_choice, check_number

AGAINST = ("noise", "batch")


@dataclass
class NoiseNegativesConfig(ObjectiveConfig):
    """Settings of :class:`NoiseNegatives`.

    Arguments:
        weight: w, the factor of a noise vector in a denominator; 1 counts it like a sentence.
        times: k, the number of noise vectors as a multiple of the batch of all processes.
        steps: t, the number of steps of ascent; 0 leaves the noise as it is drawn.
        step_size: β, the length of a step. A drawn vector has a length of about √H.
        temperature: τ_u of the ascent.
        against: the denominator of L_U: the ``noise`` alone, or the keys of the ``batch`` as well (released code).

    Raises:
        ValueError: a value that is not allowed.
    """

    name: ClassVar[str] = "noise"
    unread_with: ClassVar[Unread] = {"step_size": ("steps", (0,))}
    weight: float = 1.0
    times: float = 1.0
    steps: int = 4
    step_size: float = 1e-3
    temperature: float = 0.05
    against: str = "noise"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "against", AGAINST)
        check_number("noise_times", self.times, 0, open_ends="low")
        check_number("noise_steps", self.steps, 0)
        check_number("noise_step_size", self.step_size, 0)
        check_number("noise_temperature", self.temperature, 0, open_ends="low")


class NoiseNegatives(ContrastModifier):
    """Gaussian vectors ĥ as further negatives, moved to where the embeddings crowd (DCLR §4.1)

    L = −(1/B) Σ_i log( e^{sim(h_i, h_i⁺)/τ} / (Σ_k e^{sim(h_i, h_k⁺)/τ} + w · Σ_j e^{sim(h_i, ĥ_j)/τ}) )

    ĥ_j ~ N(0, 1), then t times:  ĥ_j ← ĥ_j + β · g(ĥ_j)/‖g(ĥ_j)‖,  g(ĥ_j) = ∂/∂ĥ_j Σ_i L_U(h_i)

    noise: L_U(h_i) = −log( e^{sim(h_i, h_i⁺)/τ_u} / Σ_j e^{sim(h_i, ĥ_j)/τ_u} )
    batch: L_U(h_i) = −log( e^{sim(h_i, h_i⁺)/τ_u} / (Σ_k e^{sim(h_i, h_k⁺)/τ_u} + Σ_j e^{sim(h_i, ĥ_j)/τ_u}) )

    All rows of all processes share the noise. No gradient flows through it. The diagnostic ``noise_cosine`` is the
    mean of sim(h_i, ĥ_j).
    """

    config_class = NoiseNegativesConfig
    config: NoiseNegativesConfig
    cacheable = True

    def negatives(self, views: Views, batch: dict[str, Tensor], encode: Encode) -> Negatives:
        h_BH, h_KH = views.z[0].detach().float(), gather_rows(views.z[1].detach().float())
        Q = max(1, round(self.config.times * len(h_KH)))
        noise_QH = from_first_process(torch.randn(Q, h_BH.shape[1], device=h_BH.device))
        for _ in range(self.config.steps):
            noise_QH = noise_QH + self.config.step_size * normalize(self.gradient(noise_QH, h_BH, h_KH), dim=-1)
        return Negatives(noise_QH, torch.full((Q,), self.config.weight, device=h_BH.device))

    def gradient(self, noise_QH: Tensor, h_BH: Tensor, h_KH: Tensor) -> Tensor:
        """Return g, (Q, H): the gradient of Σ_i L_U(h_i) over the rows of all processes. The positive's similarity
        does not depend on the noise."""
        τ_u = self.config.temperature
        with torch.enable_grad():
            noise_QH = noise_QH.detach().requires_grad_()
            logits = cosine_logits(h_BH, noise_QH, τ_u)
            if self.config.against == "batch":
                logits = torch.cat([cosine_logits(h_BH, h_KH, τ_u), logits], dim=1)
            (g_QH,) = torch.autograd.grad(logits.logsumexp(1).sum(), noise_QH)
        return sum_over_processes(g_QH)
