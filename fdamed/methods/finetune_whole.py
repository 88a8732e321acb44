"""Fine-tuning of a whole model at the target, as a second phase (`then`) after any method.

The usual alternative to a frozen extractor. On the wire: the target gets the model once a round and shows it to be
judged.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from fdamed.federation.client import Step
from fdamed.federation.method import Method, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.finetuning import Handover, Tuned, tune_whole


@method("finetune_whole")
class FinetuneWhole(Method[Tuned]):
    title: ClassVar[str] = "fine-tuned whole"
    paper: ClassVar[str] = "FedGP, section 5 and Appendix B"
    target_labels: ClassVar[bool] = True
    needs_each: ClassVar[str] = ""
    noised: ClassVar[bool] = True
    asks_sources: ClassVar[bool] = False
    steps: ClassVar[tuple[Step, ...]] = (tune_whole,)
    state: ClassVar[type] = Tuned

    head: Literal["new", "kept"] = option("kept", "begin with a new head, or with the sources' own")
    optimizer: Literal["kept", "fresh"] = option("kept", "one optimizer for the whole phase, or a new one each round")

    def start(self, theta: Tensor) -> Tuned:
        return Tuned(x=theta, begun=0)

    def round(self, state: Tuned, server: Server) -> Tuned:
        fresh = self.head == "new" and not state.begun
        ask = Handover(x=state.x, fresh=int(fresh), afresh=int(self.optimizer == "fresh"))
        h_t = server.ask(server.target, tune_whole, ask)
        server.notes["train/loss"] = h_t.loss
        return Tuned(x=h_t.x, begun=1)

    def final(self, state: Tuned) -> Tensor:
        return state.x
