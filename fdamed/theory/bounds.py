"""The Delta errors of section 4 of the FedGP paper: Theorem 4.5, and Theorem 4.6 in its mean-field form.

Squares throughout: sigma2 is the target's variance (Def. 4.2), d2 its distance to the sources (Def. 4.1), norm2 the
target's squared norm; every function returns Delta^2 (Def. 4.3).
"""

from __future__ import annotations


def fedda_error(beta: float, sigma2: float, d2: float) -> float:
    """Theorem 4.5."""
    return (1 - beta) ** 2 * sigma2 + beta**2 * d2


def fedgp_error(beta: float, sigma2: float, d2: float, tau2: float, delta: float, norm2: float, along2: float) -> float:
    """Theorem 4.6 with delta and tau at their means; along2 = E <g_hat - g_T, u_S>^2.

    The theorem prints <g_T, g_S> in its fourth term, which vanishes here, where its proof has <g_T, u_S>.
    """
    return (
        (1 - beta) ** 2 * sigma2
        + beta**2 * delta * tau2 * d2
        + (2 * beta - beta**2) * delta * along2
        + beta**2 * (1 - delta) * norm2
    )


def four_errors(
    sigma2: float, d2: float, beta: float, delta: float, tau2: float, m: float, norm2: float = 0.0
) -> dict[str, float]:
    """Delta^2 of the four rules of section 4.3, with noise alike in all m directions.

    With delta = 1 the target's norm does not matter.
    """
    return {
        "source_only": d2,
        "fedda": fedda_error(beta, sigma2, d2),
        "fedgp": fedgp_error(beta, sigma2, d2, tau2, delta, norm2, sigma2 / m),
        "target_only": sigma2,
    }


def winner(errors: dict[str, float]) -> str:
    """The rule with the smallest error; the first of equals."""
    return min(errors, key=lambda rule: errors[rule])
