"""When a run is saved, and how it is asked to stop."""

from __future__ import annotations

from typing import Any

from effssl.run import RunFolder
from effssl.runtime.distribution import any_process, barrier, rank
from effssl.runtime.errors import RequestError, RunFailed, Stopped
from effssl.runtime.files import remove_leftovers
from effssl.runtime.reading import describe
from effssl.runtime.signals import Stop
from effssl.training.budget import Budget
from effssl.training.checkpoint import load_checkpoint, save_checkpoint, set_aside_damaged
from effssl.training.trainer import Trainer


class Checkpoints:
    """Knows when a run is due to be saved: every so many steps, after an epoch, when somebody asks it to stop."""

    def __init__(self, run: RunFolder, trainer: Trainer, stop: Stop, budget: Budget | None = None) -> None:
        self.run = run
        self.trainer = trainer
        self.stop = stop
        self.budget = budget
        self.every = trainer.config.checkpoint_every

    def restore(self) -> dict[str, Any] | None:
        """Bring the trainer to the newest good checkpoint, if there is one."""
        path = self.run.checkpoint_path
        state = load_checkpoint(path)
        barrier()  # all have read it before it may be renamed
        if rank() == 0:
            set_aside_damaged(path)
            remove_leftovers(self.run.folder)
        if state is not None:
            self._restore(state)
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        try:
            self.trainer.restore(state)
        except RequestError:
            raise
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise RunFailed(
                f"the checkpoint of {self.run.folder} does not hold the state of this run ({describe(error)}); "
                "start again in another folder"
            ) from None

    def after_step(self) -> None:
        """Save in the middle of an epoch if that is due; stop if somebody asked for it."""
        due = self.every and self.trainer.steps_done % self.every == 0
        asked = any_process(bool(self.stop.requested))
        if due or asked:
            with self.trainer.paused():
                self.save()
        if asked:
            self._stop()

    def after_epoch(self) -> None:
        """Save after an epoch, unless only every so many steps; stop if somebody asked for it."""
        finished = self.trainer.finished
        due = not self.every or self.trainer.steps_done % self.every == 0
        asked = any_process(bool(self.stop.requested)) and not finished
        if due or finished or asked:
            self.save()
        if asked:
            self._stop()

    def save(self) -> None:
        """Write a checkpoint. Values that are not finite must not take the place of good ones."""
        self.check_finite()
        if not self.trainer.finite():
            raise RunFailed(f"the weights are not finite; try a smaller --lr{self._kept()}")
        state = self.trainer.state(elapsed=self.budget.elapsed() if self.budget is not None else 0.0)
        if rank() == 0:
            save_checkpoint(self.run.checkpoint_path, state)

    def check_finite(self) -> None:
        """A loss that is not a number stays so: say where it happened and what helps."""
        found = self.trainer.means.not_finite()
        if not found:
            return
        bad = [name.removeprefix("loss/") for name in found if "/" in name]
        at = self.trainer.position
        raise RunFailed(
            f"the loss is not finite (term {', '.join(bad) or 'sum'}, epoch {at.epoch + 1}, step {at.step}); try a "
            f"smaller --lr than {self.trainer.config.lr:g}, a longer warm-up or --precision float32{self._kept()}"
        )

    def _kept(self) -> str:
        """What a run that fails leaves, as the end of a message."""
        return ". What was saved before is intact" if self.run.checkpoint_path.is_file() else ""

    def _stop(self) -> None:
        at = self.trainer.position
        done = f"epoch {at.epoch + 1}, step {at.step}" if at.step else f"epoch {at.epoch}"
        raise Stopped(f"stopped and saved after {done}; resume with --resume auto")
