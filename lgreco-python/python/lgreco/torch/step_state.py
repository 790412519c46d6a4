"""The states of a training step, and the transitions between them.

    | from       | transition | to         | when                                                           |
    | ---------- | ---------- | ---------- | -------------------------------------------------------------- |
    | Between    | begin      | Exchanging | The first bucket of a backward pass begins.                    |
    | Exchanging | refuse     | Refused    | All ranks have found that the step cannot be performed.        |
    | Exchanging | end        | Ended      | The last bucket or the backward pass has ended.                |
    | Refused    | end        | Ended      | The last bucket or the backward pass has ended.                |
    | Ended      | told       | Between    | The step's error has been raised.                              |
    | Ended      | begin      | Exchanging | The first bucket of the next step begins, maybe in this pass.  |

Undoing a step, or loading a saved state, leads from any state to ``Between``.
"""

from dataclasses import dataclass, field

from lgreco._lgreco import LgrecoError
from lgreco.torch.backward import BackwardPass
from lgreco.torch.exchange import BucketExchange


@dataclass
class Between:
    """No step is under way."""

    def begin(self, backward: BackwardPass) -> "Exchanging":
        return Exchanging(backward, None)


@dataclass
class Ended:
    """The step has ended. ``failure`` is raised at the end of the step's backward pass."""

    backward: BackwardPass
    failure: LgrecoError | None

    def begin(self, backward: BackwardPass) -> "Exchanging":
        """Begins the next step. If reentrant checkpoints put both steps in one pass, the end of the next step also raises this
        step's failure."""
        return Exchanging(backward, self.failure if self.backward.is_between else None)

    def begin_in_same_pass(self) -> "Exchanging":
        """Begins the next step in this step's backward pass. The end of the pass also raises this step's failure."""
        return Exchanging(self.backward, self.failure)


@dataclass
class UnderWay:
    """A step has begun. The step must be undone if its backward pass ends early."""

    backward: BackwardPass
    failure: LgrecoError | None
    """The step's first error that all ranks know."""
    exchanges: list[BucketExchange] = field(default_factory=list)
    """The exchanges of the step's buckets so far, in order."""
    layers: set[int] = field(default_factory=set)
    """The layers in these buckets."""

    @property
    def is_lost(self) -> bool:
        """Whether an interrupt came during the start of a collective, so that the step cannot be undone."""
        return any(exchange.is_lost for exchange in self.exchanges)

    def is_left_over(self, layers: list[int] | None = None) -> bool:
        """Whether the step's backward pass ended early. ``layers`` belong to a new bucket.

        With reentrant checkpoints, the end of the outer pass may be unknown. But no layer appears twice in a pass, so a
        repeated layer shows that the pass has ended.
        """
        if layers is not None and self.backward.is_between and not self.layers.isdisjoint(layers):
            return True
        return self.backward.is_known and self.backward.is_over()

    def end(self) -> Ended:
        return Ended(self.backward, self.failure)


@dataclass
class Exchanging(UnderWay):
    """Buckets are exchanged. After an error that all ranks know, the other buckets continue."""

    def fail(self, failure: LgrecoError) -> None:
        """Records an error that all ranks get, unless the step already has an error."""
        self.failure = self.failure or failure

    def refuse(self, failure: LgrecoError) -> "Refused":
        """Refuses the step, because all ranks know that it cannot be performed."""
        return Refused(self.backward, failure, self.exchanges, self.layers)


@dataclass
class Refused(UnderWay):
    """All ranks know that the step cannot be performed. Nothing is exchanged in this step, and means are zeros."""

    failure: LgrecoError


StepState = Between | Exchanging | Refused | Ended
