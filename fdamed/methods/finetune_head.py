"""Fine-tuning of a head, the second phase of transferable federated learning (FedGTST paper, section 3, Eq. 3).

The extractor f* is fixed and a new classifier g_T is trained on the target's labels. Meant for `then`: it goes on with
the model that the sources have made. On the wire: the target gets the model once a round and shows it to be judged.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from fdamed.federation.client import Step
from fdamed.federation.method import Method, method, option
from fdamed.federation.server import Server
from fdamed.methods._shared.finetuning import Handover, Tuned, tune_head


@method("finetune_head")
class FinetuneHead(Method[Tuned]):
    title: ClassVar[str] = "fine-tuned head"
    paper: ClassVar[str] = "FedGTST, section 3"
    target_labels: ClassVar[bool] = True
    needs_each: ClassVar[str] = ""
    noised: ClassVar[bool] = True
    asks_sources: ClassVar[bool] = False
    steps: ClassVar[tuple[Step, ...]] = (tune_head,)
    state: ClassVar[type] = Tuned

    head: Literal["new", "kept"] = option("new", "begin with a new classifier g_T, or with the sources' own")
    optimizer: Literal["kept", "fresh"] = option("kept", "one optimizer for the whole phase, or a new one each round")

    def start(self, theta: Tensor) -> Tuned:
        return Tuned(x=theta, begun=0)

    def round(self, state: Tuned, server: Server) -> Tuned:
        fresh = self.head == "new" and not state.begun
        ask = Handover(x=state.x, fresh=int(fresh), afresh=int(self.optimizer == "fresh"))
        h_t = server.ask(server.target, tune_head, ask)
        server.notes["train/loss"] = h_t.loss
        return Tuned(x=h_t.x, begun=1)

    def final(self, state: Tuned) -> Tensor:
        return state.x
